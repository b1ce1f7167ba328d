"""The screen of `quaymaster top`, drawn with Textual (extra `top`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from quaymaster.cli.admin.top_figures import (
    PROCESS_COLUMNS,
    SORTS,
    Look,
    QueueRow,
    age_text,
    arrange,
    depth_bar,
    journal_rows,
    process_rows,
    rate_text,
    rows_of,
)
from quaymaster.cli.shared.failures import CommandRefused, NoServer

ROWS_MAX = 500
"""More are not drawn: what is sorted first is."""
COLUMNS = ("queue", "depth", "visible", "in flight", "delayed", "oldest", "sent", "deleted")


class TopScreen(App[None]):
    """Looks again and again, on a thread, and draws what it found."""

    CSS = """
    #head { height: 1; padding: 0 1; text-style: bold; }
    #alerts { height: auto; max-height: 8; padding: 0 1; color: $warning; }
    #journals { height: auto; max-height: 12; padding: 0 1; }
    #filter { display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("c", "cell", "Cell"),
        Binding("s", "sort", "Sort"),
        Binding("/", "filter", "Filter"),
        Binding("escape", "close_filter", "Show all", show=False),
    ]

    def __init__(
        self,
        look: Callable[[], Look],
        first: Look,
        *,
        sort: str,
        part: str,
        interval_s: float,
        of_cell: bool = False,
    ) -> None:
        """`look` asks the server, and may take long."""
        super().__init__()
        self._look = look
        self._now = first
        self._before: Look | None = None
        self._sort_field = sort
        self._part = part
        self._interval_s = interval_s
        self._is_of_cell = of_cell
        self._problem = ""
        self._is_looking = False

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static(id="head")
        yield Static(id="alerts")
        yield Input(placeholder="part of a name", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="journals")
        yield Footer()

    def on_mount(self) -> None:
        """Draw, and begin to look."""
        self.query_one(DataTable).add_columns(*self._columns)
        self.query_one(DataTable).focus()
        self._draw()
        self.set_interval(self._interval_s, self._look_again)

    @property
    def _columns(self) -> tuple[str, ...]:
        return PROCESS_COLUMNS if self._is_of_cell else COLUMNS

    def action_cell(self) -> None:
        """Show the cell in place of queues, or queues again."""
        self._is_of_cell = not self._is_of_cell
        table = self.query_one(DataTable)
        table.clear(columns=True)
        table.add_columns(*self._columns)
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next field."""
        self._sort_field = SORTS[(SORTS.index(self._sort_field) + 1) % len(SORTS)]
        self._draw()

    def action_filter(self) -> None:
        """Ask for a part of names."""
        field = self.query_one(Input)
        field.add_class("open")
        field.focus()

    def action_close_filter(self) -> None:
        """Show all queues again."""
        field = self.query_one(Input)
        field.value = self._part = ""
        field.remove_class("open")
        self.query_one(DataTable).focus()
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._part = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Go back to the rows, which stay filtered."""
        self.query_one(DataTable).focus()

    def _look_again(self) -> None:
        if not self._is_looking:  # one that takes long is not overtaken
            self._is_looking = True
            self.run_worker(self._look_once, thread=True)

    def _look_once(self) -> None:
        try:
            found = self._look()
        except (CommandRefused, NoServer) as error:
            self.call_from_thread(self._take, None, str(error))
        else:
            self.call_from_thread(self._take, found, "")

    def _take(self, found: Look | None, problem: str) -> None:
        self._is_looking = False
        self._problem = problem
        if found is not None:
            self._before, self._now = self._now, found
        self._draw()

    def _draw(self) -> None:
        now = self._now
        rows = arrange(rows_of(now, self._before), self._sort_field, self._part)
        waiting = sum(row.visible for row in rows)
        head = f"{len(rows)} queues, {waiting:,} visible  by {self._sort_field}  {now.status['state']}"
        self.query_one("#head", Static).update(Text(f"{head}  {self._problem}" if self._problem else head))
        firing = [alarm for alarm in now.alarms or () if alarm["StateValue"] == "ALARM"]
        self.query_one("#alerts", Static).update(
            Text("\n".join(f"! {alarm['AlarmName']}: {alarm.get('StateReason', '')}" for alarm in firing))
        )
        table = self.query_one(DataTable)
        place = table.cursor_row
        table.clear()
        if self._is_of_cell:
            self._draw_cell(table)
        else:
            self._draw_queues(table, rows)
        table.move_cursor(row=min(place, max(0, table.row_count - 1)))

    def _draw_cell(self, table: DataTable[Text]) -> None:
        for row in process_rows(self._now.cell)[:ROWS_MAX]:
            table.add_row(*map(Text, row))
        lines = [
            f"journal {name}  leader {leader}  epoch {epoch}  {followers}"
            for name, leader, epoch, followers in journal_rows(self._now.cell)
        ]
        if self._now.cell is None:
            lines = ["No console answers, which knows of the cell."]
        self.query_one("#journals", Static).update(Text("\n".join(lines)))

    def _draw_queues(self, table: DataTable[Text], rows: Sequence[QueueRow]) -> None:
        self.query_one("#journals", Static).update("")
        for row in rows[:ROWS_MAX]:
            # Text, not str: names must not be read as markup.
            table.add_row(
                Text(row.name),
                Text(depth_bar(row)),
                *(Text(f"{count:,}", justify="right") for count in (row.visible, row.in_flight, row.delayed)),
                *(
                    Text(shown, justify="right")
                    for shown in (
                        age_text(row.age_s),
                        rate_text(row.sent_per_s),
                        rate_text(row.deleted_per_s),
                    )
                ),
            )
