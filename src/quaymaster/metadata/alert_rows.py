"""The rows of alerts and dashboards, which consoles write: here an account that is deleted loses them.

Front ends keep none of them in memory.
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.alerts.alerts import ALERT_DESTINATIONS, ALERT_STATES, ALERTS, PAST_ALERTS
from quaymaster.core.monitoring.dashboards import DASHBOARDS
from quaymaster.metadata.store.mirror import Mirror

ALERT_ROWS: Final = (ALERTS, ALERT_STATES, PAST_ALERTS, ALERT_DESTINATIONS, DASHBOARDS)
"""Those whose keys name an account first."""
DROPPED_AT_A_TIME: Final = 100


async def drop_alerts_of(mirror: Mirror, account_id: str) -> None:
    """Remove the alerts, destinations and dashboards of an account that was deleted, whose id is never given again.

    What a crash leaves of them, or a console writes at the same moment, consoles remove.
    """
    for prefix in ALERT_ROWS:
        rows, _ = await mirror.store.list_all(f"{prefix}{account_id}/")
        for at in range(0, len(rows), DROPPED_AT_A_TIME):
            await mirror.transact([], deletes=[row.key for row in rows[at : at + DROPPED_AT_A_TIME]])
