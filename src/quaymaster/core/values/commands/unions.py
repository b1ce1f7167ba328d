"""All commands, all outcomes, and all that the core decides."""

from __future__ import annotations

from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimOutcome,
    ClaimsOutcome,
    DescribeClaims,
    ReadClaim,
    ReleaseClaims,
    ReleasedOutcome,
    Settle,
    SettledOutcome,
)
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome, CompletionDecided
from quaymaster.core.values.commands.decided import (
    ClaimedOutcome,
    Consume,
    Consumed,
    ExpireMessages,
    FetchedOffsets,
    PeekedOffsets,
    SentElsewhere,
    SentOutcome,
    TakenOutcome,
    WriteBarrier,
)
from quaymaster.core.values.commands.logs import (
    Fetch,
    FetchOutcome,
    FindOffset,
    FoundOffset,
    LogBounds,
    LogBoundsOutcome,
    ResetGroup,
    SetGroupOffset,
)
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    Peek,
    PeekOutcome,
    Purge,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.move_tasks import (
    CancelMoveTask,
    FinishMoveTask,
    ListMoveTasks,
    MoveTasksOutcome,
    StartMoveTask,
    TakeForMove,
    TakenForTask,
)
from quaymaster.core.values.commands.moves import (
    EndMoves,
    MoveBegun,
    MoveIn,
    MoveInOutcome,
    MoveMessage,
    MovesGoOn,
)
from quaymaster.core.values.commands.partitions import (
    AskGroups,
    AskIds,
    AskMarks,
    AskPartition,
    DataKeysOutcome,
    ForgetQueue,
    GroupsOutcome,
    IdsOutcome,
    ListDataKeys,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import (
    AbortedOutcome,
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StagedOutcome,
    StageMessages,
)

Command = (
    Send
    | Receive
    | Delete
    | ChangeVisibility
    | Purge
    | SetQueue
    | ForgetQueue
    | CountMessages
    | Peek
    | StartMoveTask
    | CancelMoveTask
    | ListMoveTasks
    | ResetGroup
    | SetGroupOffset
    | Fetch
    | LogBounds
    | FindOffset
    | StageMessages
    | CommitTransaction
    | AbortTransaction
    | ListDataKeys
    | AskMarks
    | Watch
    | AskPartition
    | AskIds
    | Claim
    | ReadClaim
    | Settle
    | DescribeClaims
    | ReleaseClaims
    | Complete
)
"""What a front end or a metadata node may ask."""
InternalCommand = (
    ExpireMessages
    | MoveMessage
    | TakeForMove
    | FinishMoveTask
    | MoveIn
    | EndMoves
    | WriteBarrier
    | AskGroups
    | Consume
)
Outcome = (
    SendOutcome
    | ReceiveOutcome
    | EntriesOutcome
    | Done
    | QueueCounts
    | PeekOutcome
    | MoveTasksOutcome
    | FetchOutcome
    | LogBoundsOutcome
    | FoundOffset
    | StagedOutcome
    | CommittedOutcome
    | AbortedOutcome
    | DataKeysOutcome
    | MarksOutcome
    | WatchOutcome
    | Elsewhere
    | PartitionOutcome
    | IdsOutcome
    | ClaimOutcome
    | SettledOutcome
    | ClaimsOutcome
    | ReleasedOutcome
    | CompleteOutcome
)
"""What it is answered."""
Decided = (
    SentOutcome
    | TakenOutcome
    | TakenForTask
    | Consumed
    | EntriesOutcome
    | Done
    | QueueCounts
    | PeekedOffsets
    | FetchedOffsets
    | FetchOutcome
    | LogBoundsOutcome
    | FoundOffset
    | MoveTasksOutcome
    | MoveBegun
    | MovesGoOn
    | MoveInOutcome
    | StagedOutcome
    | CommittedOutcome
    | AbortedOutcome
    | MarksOutcome
    | WatchOutcome
    | Elsewhere
    | SentElsewhere
    | PartitionOutcome
    | IdsOutcome
    | GroupsOutcome
    | ClaimedOutcome
    | ClaimOutcome
    | SettledOutcome
    | ClaimsOutcome
    | ReleasedOutcome
    | CompletionDecided
)
"""What the core decides; the broker reads the bodies that an `Outcome` has besides."""
