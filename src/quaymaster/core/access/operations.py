"""The operations of the admin API, as policies of users name them: `quaymaster:CreateAccount`.

Each route of the admin API has one of these, under the name of its audit event where it leaves one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Operation(StrEnum):
    """What an operator can do over the admin API."""

    ACCEPT_CLOCK = "AcceptClock"
    CANCEL_KMS_KEY_DELETION = "CancelKMSKeyDeletion"
    CANCEL_QUEUE_CHANGE = "CancelQueueChange"
    CREATE_ACCESS_KEY = "CreateAccessKey"
    CREATE_ACCOUNT = "CreateAccount"
    CREATE_BACKUP = "CreateBackup"
    CREATE_CONSUMER_GROUP = "CreateConsumerGroup"
    CREATE_DESTINATION = "CreateDestination"
    CREATE_KMS_KEY = "CreateKMSKey"
    CREATE_ROLE = "CreateRole"
    CREATE_SESSION = "CreateSession"
    CREATE_USER = "CreateUser"
    DELETE_ACCESS_KEY = "DeleteAccessKey"
    DELETE_ACCOUNT = "DeleteAccount"
    DELETE_DESTINATION = "DeleteDestination"
    DELETE_KMS_ALIAS = "DeleteKMSAlias"
    DELETE_OIDC_ISSUER = "DeleteOIDCIssuer"
    DELETE_QUEUE = "DeleteQueue"
    DELETE_ROLE = "DeleteRole"
    DELETE_ROLE_POLICY = "DeleteRolePolicy"
    DELETE_USER = "DeleteUser"
    DELETE_USER_PASSWORD = "DeleteUserPassword"  # noqa: S105 -- a name
    DELETE_USER_POLICY = "DeleteUserPolicy"
    DISABLE_ACCESS_KEY = "DisableAccessKey"
    DISABLE_ACCOUNT = "DisableAccount"
    DISABLE_KMS_KEY = "DisableKMSKey"
    ENABLE_ACCESS_KEY = "EnableAccessKey"
    ENABLE_ACCOUNT = "EnableAccount"
    ENABLE_KMS_KEY = "EnableKMSKey"
    GET_BACKUP = "GetBackup"
    GET_CELL = "GetCell"
    GET_DESTINATION_SECRET = "GetDestinationSecret"  # noqa: S105 -- an operation
    GET_KMS_KEY = "GetKMSKey"
    GET_LIMITS = "GetLimits"
    GET_PAUSES = "GetPauses"
    GET_PUSH_SECRET = "GetPushSecret"  # noqa: S105 -- an operation
    GET_QUEUE_HISTORY = "GetQueueHistory"
    GET_QUEUE_POLICY = "GetQueuePolicy"
    GET_QUEUE_PUSH = "GetQueuePush"
    GET_ROLE = "GetRole"
    GET_SETTINGS = "GetSettings"
    GET_STATUS = "GetStatus"
    GET_USAGE = "GetUsage"
    GET_USER = "GetUser"
    LIST_ACCESS_KEYS = "ListAccessKeys"
    LIST_ACCOUNTS = "ListAccounts"
    LIST_CONSUMER_GROUPS = "ListConsumerGroups"
    LIST_DECISIONS = "ListDecisions"
    LIST_DESTINATIONS = "ListDestinations"
    LIST_FRONT_ENDS = "ListFrontEnds"
    GIVE_UP_PARTITION = "GiveUpPartition"
    LIST_KMS_KEYS = "ListKMSKeys"
    LIST_LIMITS = "ListLimits"
    LIST_OIDC_ISSUERS = "ListOIDCIssuers"
    LIST_QUEUES = "ListQueues"
    LIST_PARTITIONS = "ListPartitions"
    LIST_ROLES = "ListRoles"
    LIST_USERS = "ListUsers"
    MERGE_QUEUE = "MergeQueue"
    MOVE_QUEUE = "MoveQueue"
    PEEK_MESSAGES = "PeekMessages"
    PUT_ROLE_POLICY = "PutRolePolicy"
    PUT_USER_POLICY = "PutUserPolicy"
    REMOVE_LIMIT = "RemoveLimit"
    REMOVE_QUEUE_POLICY = "RemoveQueuePolicy"
    RESET_CONSUMER_GROUP = "ResetConsumerGroup"
    REVOKE_ROLE_SESSIONS = "RevokeRoleSessions"
    REVOKE_USER_SESSIONS = "RevokeUserSessions"
    ROTATE_ACCESS_KEY = "RotateAccessKey"
    ROTATE_MASTER_KEY = "RotateMasterKey"
    ROTATE_PUSH_SECRET = "RotatePushSecret"  # noqa: S105 -- an operation
    ROTATE_RECEIPT_KEY = "RotateReceiptKey"
    ROTATE_SESSION_KEY = "RotateSessionKey"
    SCHEDULE_KMS_KEY_DELETION = "ScheduleKMSKeyDeletion"
    SEAL_FRONT_END = "SealFrontEnd"
    SEARCH_AUDIT = "SearchAudit"
    SET_CONSUMER_GROUP_OFFSET = "SetConsumerGroupOffset"
    SET_KMS_ALIAS = "SetKMSAlias"
    SET_LIMIT = "SetLimit"
    SET_OIDC_ISSUER = "SetOIDCIssuer"
    SET_USER_PASSWORD = "SetUserPassword"  # noqa: S105 -- a name
    SPLIT_QUEUE = "SplitQueue"
    TEST_DESTINATION = "TestDestination"
    TEST_PUSH = "TestPush"
    UPDATE_ROLE = "UpdateRole"


ADMIN_SERVICE: Final = "quaymaster"
OPERATION_NAMES: Final = {each: f"{ADMIN_SERVICE}:{each.lower()}" for each in Operation}
"""Each as decisions and answers name it."""
