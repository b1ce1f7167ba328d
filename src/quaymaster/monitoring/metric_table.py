"""All metrics in one table: their names, labels and meaning.

Naming follows Prometheus: prefix `quaymaster_`, base units, `_total` on counters.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

WORKER_LABEL: Final = "worker"
"""The label of what a worker of a server counts."""
Kind = Literal["counter", "gauge", "histogram"]


class Declaration(NamedTuple):
    """One metric: its kind, what it says, and the labels its samples have."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    is_of_cells: bool = False
    """Whether only the processes of a cell have it."""
    is_of_consoles: bool = False
    """Whether only a console has it; a server gives it with the metrics of its own."""


METRICS: Final[dict[str, Declaration]] = {
    # Front end
    "quaymaster_http_requests_total": Declaration(
        "counter", "Requests answered, by action and error code (OK: none).", ("action", "code")
    ),
    "quaymaster_http_request_duration_seconds": Declaration(
        "histogram", "From the last byte of a request to its reply, a long poll's wait included.", ("action",)
    ),
    "quaymaster_http_events_total": Declaration(
        "counter", "What happened to connections: opened, closed, refused, timed out.", ("event",)
    ),
    "quaymaster_http_connections": Declaration("gauge", "Connections open now."),
    "quaymaster_http_connections_held": Declaration(
        "gauge",
        "Connections from which nothing is read for a while, because a request of theirs was too much.",
    ),
    "quaymaster_http_connections_unsigned": Declaration(
        "gauge", "Connections open now on which nothing was signed yet."
    ),
    "quaymaster_http_unsigned_bytes": Declaration(
        "gauge", "Memory that such connections hold, each above 4 KiB: received in part, and unsent."
    ),
    "quaymaster_http_bytes_total": Declaration(
        "counter",
        "Bytes of requests and their answers: received, sent. Without TLS's own.",
        ("direction",),
    ),
    "quaymaster_http_phase_duration_seconds": Declaration(
        "histogram",
        "Where the time of requests goes: queued, auth, parse, prepare, broker (poll: of long polls, with their wait), "
        "render. Requests that come together take the steps of a pass together, and count with all of it.",
        ("phase",),
    ),
    "quaymaster_http_throttled_total": Declaration(
        "counter",
        "Requests told to come again, by reason: overload, limit, account_share (an account has its part of all that "
        "is in progress), wrong_signatures (of the client's address).",
        ("reason",),
    ),
    "quaymaster_authentication_failures_total": Declaration(
        "counter", "Requests that do not prove who sends them, by the error's code.", ("reason",)
    ),
    "quaymaster_metadata_cache_requests_total": Declaration(
        "counter",
        "Requests by whether the queue and keys that they name were in memory: hit, or miss (asked for).",
        ("result",),
    ),
    "quaymaster_long_polls": Declaration("gauge", "Receives waiting for a message now."),
    "quaymaster_monitoring_requests_total": Declaration(
        "counter",
        "Requests for metrics, alarms and dashboards that were passed on to a console, by how they were answered.",
        ("operation", "code"),
    ),
    "quaymaster_messages_sent_total": Declaration("counter", "Messages stored, duplicates not counted."),
    "quaymaster_messages_duplicate_total": Declaration("counter", "Sends found to be stored already."),
    "quaymaster_messages_received_total": Declaration("counter", "Deliveries made."),
    "quaymaster_messages_empty_receives_total": Declaration("counter", "Receives answered with no message."),
    "quaymaster_messages_deleted_total": Declaration("counter", "Messages deleted by consumers."),
    "quaymaster_log_workers": Declaration(
        "gauge", "Worker processes that decrypt messages of logs that are read in bulk."
    ),
    "quaymaster_log_worker_pieces_total": Declaration(
        "counter", "Pieces, of 1,024 messages at most, that such workers were given."
    ),
    "quaymaster_log_worker_failures_total": Declaration(
        "counter", "Such workers that ended by themselves, did not answer in time or could not be started."
    ),
    "quaymaster_log_worker_pauses_total": Declaration(
        "counter", "How often such workers were left alone for a while because they had to wait for cores."
    ),
    "quaymaster_metadata_age_seconds": Declaration(
        "gauge", "How old what this front end knows of queues and keys may be, in a cell.", is_of_cells=True
    ),
    "quaymaster_metadata_queues": Declaration(
        "gauge", "Queues in the memory of this front end or metadata node, in a cell.", is_of_cells=True
    ),
    "quaymaster_partitions": Declaration(
        "gauge",
        "Partitions of queues by state: new, open, closing, closed, drained. Each metadata node tells of all.",
        ("state",),
    ),
    "quaymaster_partition_changes_total": Declaration(
        "counter",
        "Steps of splits, merges and moves of queues that this process took: begun, opened (new partitions take "
        "messages), cancelled, aged (sealed ones are closed, drained or removed).",
        ("step",),
    ),
    "quaymaster_partition_pause_seconds": Declaration(
        "histogram",
        "How much longer sends took that met a partition which had just been split, merged or moved: from when the "
        "front end heard of it to the answer.",
    ),
    "quaymaster_metadata_node_age_seconds": Declaration(
        "gauge", "How old what this metadata node knows of its store may be.", is_of_cells=True
    ),
    "quaymaster_metadata_node_rows": Declaration(
        "gauge", "Rows of the store in this metadata node's memory.", is_of_cells=True
    ),
    "quaymaster_data_keys": Declaration(
        "gauge",
        "Data keys by state, in_use, unused or retiring, as of the last daily sweep that this process did.",
        ("state",),
    ),
    "quaymaster_data_keys_deleted_total": Declaration(
        "counter", "Data keys that this process deleted because nothing needed them any more."
    ),
    "quaymaster_kms_requests_total": Declaration(
        "counter",
        "Questions about keys of queues, by what came of them: answered, refused, failed.",
        ("result",),
    ),
    "quaymaster_kms_keys_in_use": Declaration(
        "gauge", "Data keys of queues with KmsMasterKeyId in this front end's memory."
    ),
    "quaymaster_metadata_lookups_total": Declaration(
        "counter",
        "Look-ups of what was not in memory, by what came of them: found, absent, failed.",
        ("result",),
        is_of_cells=True,
    ),
    # Usage records
    "quaymaster_usage_records_total": Declaration(
        "counter", "Requests of which there is a usage record, or was."
    ),
    "quaymaster_usage_records_written_total": Declaration(
        "counter", "Usage records that are fsynced in this front end's spool."
    ),
    "quaymaster_usage_records_dropped_total": Declaration(
        "counter",
        "Usage records that were only counted, by reason: spool_full, disk_failed, too_many. Any is worth an alarm.",
        ("reason",),
    ),
    "quaymaster_usage_records_shipped_total": Declaration(
        "counter", "Usage records stored in the usage queue."
    ),
    "quaymaster_usage_blocks_shipped_total": Declaration("counter", "Blocks of them, empty ones included."),
    "quaymaster_usage_front_ends_sealed_total": Declaration(
        "counter", "Front ends that are gone, whose last incarnation this one sealed."
    ),
    "quaymaster_usage_changes_refused": Declaration(
        "gauge", "1 while changes are refused because audit events cannot be written. Worth an alarm."
    ),
    "quaymaster_usage_spool_bytes": Declaration("gauge", "Bytes of this front end's spool of usage records."),
    "quaymaster_usage_ship_lag_seconds": Declaration(
        "gauge", "How old the first usage record is that is not in the usage queue; 0 when all are."
    ),
    # Brokers, as a front end of a cell sees them
    "quaymaster_broker_calls_in_flight": Declaration(
        "gauge",
        "Commands sent to brokers and not answered yet, by kind: command, long_poll.",
        ("kind",),
        is_of_cells=True,
    ),
    "quaymaster_broker_calls_waiting": Declaration(
        "gauge",
        "Commands that wait for a journal's leader, by kind: command, long_poll.",
        ("kind",),
        is_of_cells=True,
    ),
    "quaymaster_broker_call_events_total": Declaration(
        "counter",
        "What happened to commands and routes: redirected, repeated, parked_again, refused, unknown, no_leader, "
        "leader_changed, broker_silent.",
        ("event",),
        is_of_cells=True,
    ),
    "quaymaster_broker_routes_closed": Declaration(
        "gauge", "Journals whose leader is not known now, while requests wait for it.", is_of_cells=True
    ),
    "quaymaster_brokers_silent": Declaration(
        "gauge",
        "Brokers not asked now because they did not answer: open circuit breakers.",
        is_of_cells=True,
    ),
    # Calls between the processes of a cell, as their callers see them
    "quaymaster_rpc_calls_total": Declaration(
        "counter",
        "Calls to peers by the peer's role, method and result: OK, Cancelled (whoever asked waits no longer), or the "
        "error's class: NotLeader, Timeout, Unreachable, ConnectionLost, Overloaded, ...",
        ("peer", "method", "result"),
        is_of_cells=True,
    ),
    "quaymaster_rpc_call_duration_seconds": Declaration(
        "histogram",
        "From a call to what came of it, waits for a connection included. The methods long_poll and "
        "metadata_changes wait for something to happen.",
        ("peer", "method"),
        is_of_cells=True,
    ),
    "quaymaster_rpc_calls_in_flight": Declaration(
        "gauge", "Calls to peers that are not over.", ("peer", "method"), is_of_cells=True
    ),
    "quaymaster_rpc_notices_total": Declaration(
        "counter",
        "Messages to peers that are not answered, such as those of replication: sent, or refused because the peer "
        "is not there or does not read.",
        ("peer", "result"),
        is_of_cells=True,
    ),
    "quaymaster_rpc_connections": Declaration(
        "gauge",
        "Connections with peers by side (client: made by this process; server: by the peer) and the peer's role.",
        ("side", "peer"),
        is_of_cells=True,
    ),
    "quaymaster_rpc_connection_events_total": Declaration(
        "counter",
        "Connections opened, closed, and failed: refused, not answered, or without an acceptable greeting (then the "
        "peer of a server is `other`).",
        ("side", "peer", "event"),
        is_of_cells=True,
    ),
    "quaymaster_rpc_received_bytes_total": Declaration(
        "counter", "Bytes received from peers.", ("side", "peer"), is_of_cells=True
    ),
    "quaymaster_rpc_sent_bytes_total": Declaration(
        "counter", "Bytes sent to peers.", ("side", "peer"), is_of_cells=True
    ),
    "quaymaster_metadata_retries_total": Declaration(
        "counter",
        "Requests to metadata nodes that were asked of another one, because one did not answer.",
        is_of_cells=True,
    ),
    "quaymaster_metadata_nodes_silent": Declaration(
        "gauge",
        "Metadata nodes that did not answer when last asked; others are asked first.",
        is_of_cells=True,
    ),
    "quaymaster_metadata_other_zone": Declaration(
        "gauge",
        "1 while a front end follows a metadata node of another zone, because none of its own answers.",
        is_of_cells=True,
    ),
    # Queues
    "quaymaster_queues": Declaration(
        "gauge", "Queues that exist. One with several partitions counts where its first open one is led."
    ),
    "quaymaster_queue_messages": Declaration(
        "gauge",
        "Messages by state: visible, in_flight, delayed; of each queue as of its last change.",
        ("state",),
    ),
    "quaymaster_held_groups": Declaration(
        "gauge",
        "Message groups that wait in new partitions of FIFO queues until older ones have no message of them.",
    ),
    "quaymaster_claims": Declaration(
        "gauge", "Claims that are open: messages that Spark queries hold until their batches are done."
    ),
    "quaymaster_outputs": Declaration(
        "gauge", "Messages that completions have sent and that have not arrived in their queues yet."
    ),
    "quaymaster_staged_messages": Declaration(
        "gauge", "Messages that transactions have staged and not committed; they are in no queue yet."
    ),
    "quaymaster_queue_oldest_message_age_seconds": Declaration(
        "gauge", "Age of the oldest message, to the second."
    ),
    "quaymaster_messages_redriven_total": Declaration(
        "counter", "Messages moved to a dead-letter queue or back from one."
    ),
    "quaymaster_messages_expired_total": Declaration(
        "counter", "Messages dropped at the end of their retention."
    ),
    # Journal
    "quaymaster_journal_leader_changes_total": Declaration(
        "counter", "Times a journal here got a new leader: 1 for each journal after a start on one node."
    ),
    "quaymaster_journal_durable_replicas": Declaration(
        "gauge",
        "Replicas that have made durable what is committed, of the journal led here that has the fewest; 0 when one "
        "has stopped.",
    ),
    "quaymaster_journals": Declaration(
        "gauge", "Replicas of journals on this broker, in a cell.", ("role",), is_of_cells=True
    ),
    "quaymaster_journals_by_room": Declaration(
        "gauge",
        "Replicas of journals on this broker, by the room that its disk has: plenty, low (sends are refused), reserve "
        "(only what makes room is taken), none.",
        ("room",),
        is_of_cells=True,
    ),
    "quaymaster_replication_lag_records": Declaration(
        "gauge",
        "How many records the follower that is furthest behind has not made durable, in a cell.",
        is_of_cells=True,
    ),
    "quaymaster_journal_leading": Declaration(
        "gauge",
        "1 where this broker leads the journal; the sum over a cell's brokers should be 1.",
        ("journal",),
        is_of_cells=True,
    ),
    "quaymaster_journal_epoch": Declaration(
        "gauge",
        "The epoch in which this broker leads or follows the journal.",
        ("journal",),
        is_of_cells=True,
    ),
    "quaymaster_journal_commit_offset": Declaration(
        "gauge",
        "Records of the journal below this are on a majority, as far as this broker knows.",
        ("journal",),
        is_of_cells=True,
    ),
    "quaymaster_journal_durable_offset": Declaration(
        "gauge",
        "Records of the journal below this are on this broker's disk.",
        ("journal",),
        is_of_cells=True,
    ),
    "quaymaster_journal_lag_records": Declaration(
        "gauge",
        "How many records of the journal that this broker leads another has not made durable.",
        ("journal", "broker"),
        is_of_cells=True,
    ),
    "quaymaster_journal_elections_total": Declaration(
        "counter", "Times a replica on this broker began to become the leader.", is_of_cells=True
    ),
    "quaymaster_journal_election_duration_seconds": Declaration(
        "histogram",
        "How long the phases of elections took that came to the next one: promise (a majority promises), fetch (the "
        "longest log is fetched), activation (a first record is written, and coordination is told).",
        ("phase",),
        is_of_cells=True,
    ),
    "quaymaster_expiry_held_journals": Declaration(
        "gauge",
        "Journals led here in which nothing expires, because wall clocks are far from the journal's time.",
    ),
    "quaymaster_clock_ahead_seconds": Declaration(
        "gauge",
        "How far wall clocks (a majority's in a cell) are ahead of the time of the journal led here that is furthest "
        "from them; negative: behind.",
    ),
    "quaymaster_broker_clock_skew_seconds": Declaration(
        "gauge",
        "How far a broker's wall clock is ahead of the median of its cell's, as a manager sees it; negative: behind.",
        ("broker",),
        is_of_cells=True,
    ),
    "quaymaster_cell_clock_disagreement_seconds": Declaration(
        "gauge",
        "How far the wall clocks of a cell's brokers are apart while no majority of them tells which is right; else 0.",
        is_of_cells=True,
    ),
    "quaymaster_log_append_bytes_total": Declaration("counter", "Bytes written to the journal."),
    "quaymaster_log_append_records_total": Declaration("counter", "Records written to the journal."),
    "quaymaster_log_fsync_duration_seconds": Declaration(
        "histogram", "How long one fsync of the journal took."
    ),
    "quaymaster_log_segments": Declaration("gauge", "Segment files of the journal."),
    "quaymaster_log_bytes": Declaration("gauge", "Bytes of the journal's segment files."),
    "quaymaster_log_end_offset": Declaration(
        "gauge", "The offset the next record will have; of several replicas, the sum."
    ),
    "quaymaster_log_pending_bytes": Declaration(
        "gauge", "Bytes of records that were decided and are not durable here yet."
    ),
    "quaymaster_log_live_ratio": Declaration(
        "gauge",
        "Messages that exist, as a part of the records in the journals led here: where it is low, compaction gives "
        "room back.",
    ),
    "quaymaster_snapshot_age_seconds": Declaration(
        "gauge",
        "For how long the journals here have had records that no snapshot has; of several, the longest. A start "
        "replays them.",
    ),
    "quaymaster_journal_commit_duration_seconds": Declaration(
        "histogram", "From the decision of a batch of records to its commit: in a cell, on a majority."
    ),
    "quaymaster_broker_commands_total": Declaration(
        "counter",
        "Commands answered, by kind and result: OK, empty (a receive that found nothing), or the error's class.",
        ("command", "result"),
    ),
    "quaymaster_broker_turn_duration_seconds": Declaration(
        "histogram", "How long the event loop took to decide the commands that had come together."
    ),
    "quaymaster_message_wait_duration_seconds": Declaration(
        "histogram", "From the sending of a message to its first delivery, delays included."
    ),
    "quaymaster_body_cache_requests_total": Declaration(
        "counter", "Messages looked for in memory, by result: hit, miss (read from disk).", ("result",)
    ),
    "quaymaster_body_cache_bytes": Declaration("gauge", "Bytes of messages kept in memory."),
    "quaymaster_disk_free_bytes": Declaration("gauge", "Free space where the data directory is."),
    "quaymaster_certificate_expiry_timestamp_seconds": Declaration(
        "gauge", "Until when the certificate is good by which this process shows others what it is."
    ),
    # Push
    "quaymaster_push_requests_total": Declaration(
        "counter",
        "Calls to endpoints of queues, by result: delivered, partial (some messages failed), rejected (400, 409, 413, "
        "415, 422), gone (410), refused (the address may not be called), failed, late (not begun, for it was stopped).",
        ("result",),
    ),
    "quaymaster_push_queues": Declaration(
        "gauge", "Queues that this process pushes, by state of their endpoint.", ("state",)
    ),
    # Alerts, at consoles
    "quaymaster_alerts": Declaration(
        "gauge", "Alerts of all accounts, by state.", ("state",), is_of_consoles=True
    ),
    "quaymaster_alerts_evaluated_timestamp_seconds": Declaration(
        "gauge",
        "End of the minute for which all alerts were evaluated last; 0 at a console that stands by.",
        is_of_consoles=True,
    ),
    "quaymaster_notifications_total": Declaration(
        "counter",
        "Attempts to deliver a notification, by kind (webhook, email, queue, none: no such destination, alertmanager) "
        "and result (delivered, retry, failed, expired).",
        ("kind", "result"),
        is_of_consoles=True,
    ),
    # Manager of a cell; each says it, the acting one and those that stand by
    "quaymaster_manager_acting": Declaration(
        "gauge",
        "1 where this manager is the one that acts; the sum over a cell's managers should be 1.",
        is_of_cells=True,
    ),
    "quaymaster_manager_actions_total": Declaration(
        "counter",
        "What the manager did: CreateJournal, Appoint, Transfer, ...; result done, outdated, unknown or failed.",
        ("action", "result"),
        is_of_cells=True,
    ),
    "quaymaster_cell_brokers": Declaration(
        "gauge",
        "Registered brokers by what this manager hears of them: heard, suspect.",
        ("state",),
        is_of_cells=True,
    ),
    "quaymaster_cell_journals": Declaration(
        "gauge",
        "Journals of the cell that are led, and that are leaderless.",
        ("state",),
        is_of_cells=True,
    ),
    "quaymaster_cell_journals_moving": Declaration(
        "gauge",
        "Journals of the cell that are getting another member.",
        is_of_cells=True,
    ),
    "quaymaster_cell_problems": Declaration(
        "gauge",
        "What is wrong in the cell and needs time or a person; the log and the status say what.",
        is_of_cells=True,
    ),
    "quaymaster_manager_plan_duration_seconds": Declaration(
        "histogram", "How long a manager took to plan what the cell needs.", is_of_cells=True
    ),
    "quaymaster_metadata_request_duration_seconds": Declaration(
        "histogram",
        "How long a metadata node took to answer a request of front ends or managers. GetChanges, which waits, is left "
        "out.",
        ("method",),
        is_of_cells=True,
    ),
    "quaymaster_coordination_duration_seconds": Declaration(
        "histogram",
        "How long the coordination store (SQLite, etcd) took, by operation: get, list_prefix, transaction, "
        "grant_lease, keep_alive.",
        ("operation",),
    ),
    "quaymaster_lease_remaining_seconds": Declaration(
        "gauge",
        "For how long the row by which others know that this process runs is there if the store is not reached again.",
        is_of_cells=True,
    ),
    # Console
    "quaymaster_console_live_pages": Declaration(
        "gauge", "Pages that are kept current now.", is_of_consoles=True
    ),
    "quaymaster_history_lag_seconds": Declaration(
        "gauge",
        "How far the history of queues is behind: up to 60 where all is well.",
        is_of_consoles=True,
    ),
    "quaymaster_history_bytes": Declaration(
        "gauge", "What the history of queues takes on disk.", is_of_consoles=True
    ),
    # Process
    "quaymaster_pool_used_ratio": Declaration(
        "gauge",
        "How much of what the process may have is in use, 1 for all: connections, requests, long_polls, control "
        "(actions that change things), broker_calls (of the busiest broker), files, memory, disk.",
        ("pool",),
    ),
    "quaymaster_event_loop_pause_seconds": Declaration(
        "histogram", "How long one piece of work held up all others, from a millisecond on."
    ),
    "quaymaster_event_loop_longest_pause_seconds": Declaration(
        "gauge",
        "The longest such pause of the last minute: own (what counts), wall (with waits for a processor that other "
        "processes had), cpu (the most processor time of one).",
        ("part",),
    ),
    "quaymaster_build_info": Declaration("gauge", "Always 1; the labels say what is running.", ("version",)),
}
