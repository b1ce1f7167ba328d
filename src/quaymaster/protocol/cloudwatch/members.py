"""The inputs and outputs of CloudWatch's operations, member by member, and how large what they name may be.

A test keeps them equal to the public service model. What outputs lack here are alarms over other alarms and over logs.
`protocol/actions/table` says which operation has which.

Source: the public CloudWatch service model, 2010-08-01.
"""

from __future__ import annotations

from typing import Final

from quaymaster.protocol.cloudwatch.kinds import Flag, Kind, ListOf, MapOf, Real, Structure, Text, Time, Whole

_LONG_MAX: Final = 2**63 - 1


def _structure(*required: str, **members: Kind) -> Structure:
    return Structure(members, frozenset(required))


# Single values

_ANY: Final = Text()
_FLAG: Final = Flag()
_TIME: Final = Time()
_REAL: Final = Real()
_WHOLE: Final = Whole()
_COUNT: Final = Whole(least=1)
_NAMESPACE: Final = Text(1, 255, pattern="[^:].*")
_NAME: Final = Text(1, 255)
"""Of an alarm, a metric, a dimension, a query; an account's id; a prefix of such a name."""
_DIMENSION_VALUE: Final = Text(1, 1024)
_ARN: Final = Text(1, 1024)
_STATISTICS: Final = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
_STATISTIC: Final = Text(choices=_STATISTICS)
_SCAN: Final = Text(choices=("TimestampDescending", "TimestampAscending"))
_STATE: Final = Text(choices=("OK", "ALARM", "INSUFFICIENT_DATA"))
_COMPARISON: Final = Text(
    choices=(
        "GreaterThanOrEqualToThreshold",
        "GreaterThanThreshold",
        "LessThanThreshold",
        "LessThanOrEqualToThreshold",
        "LessThanLowerOrGreaterThanUpperThreshold",
        "LessThanLowerThreshold",
        "GreaterThanUpperThreshold",
    )
)
_SIZES: Final = ("Bytes", "Kilobytes", "Megabytes", "Gigabytes", "Terabytes")
_BITS: Final = ("Bits", "Kilobits", "Megabits", "Gigabits", "Terabits")
_UNIT: Final = Text(
    choices=(
        *("Seconds", "Microseconds", "Milliseconds", *_SIZES, *_BITS, "Percent", "Count"),
        *(f"{unit}/Second" for unit in (*_SIZES, *_BITS)),
        *("Count/Second", "None"),
    )
)

# Metrics

_DIMENSION: Final = _structure("Name", "Value", Name=_NAME, Value=_DIMENSION_VALUE)
_DIMENSIONS: Final = ListOf(_DIMENSION, items_max=30)
_METRIC: Final = _structure(Namespace=_NAMESPACE, MetricName=_NAME, Dimensions=_DIMENSIONS)
_METRIC_STAT: Final = _structure(
    "Metric", "Period", "Stat", Metric=_METRIC, Period=_COUNT, Stat=_ANY, Unit=_UNIT
)
_QUERIES: Final = ListOf(
    _structure(
        "Id",
        Id=_NAME,
        MetricStat=_METRIC_STAT,
        Expression=Text(1, 2048),
        Label=_ANY,
        ReturnData=_FLAG,
        Period=_COUNT,
        AccountId=_NAME,
    )
)
_MESSAGES: Final = ListOf(_structure(Code=_ANY, Value=_ANY))

LIST_METRICS_INPUT: Final = _structure(
    Namespace=_NAMESPACE,
    MetricName=_NAME,
    Dimensions=ListOf(_structure("Name", Name=_NAME, Value=_DIMENSION_VALUE), items_max=10),
    NextToken=_ANY,
    RecentlyActive=Text(choices=("PT3H",)),
    IncludeLinkedAccounts=_FLAG,
    OwningAccount=_NAME,
)
LIST_METRICS_OUTPUT: Final = _structure(Metrics=ListOf(_METRIC), NextToken=_ANY, OwningAccounts=ListOf(_NAME))
METRIC_DATA_INPUT: Final = _structure(
    *("MetricDataQueries", "StartTime", "EndTime"),
    MetricDataQueries=_QUERIES,
    StartTime=_TIME,
    EndTime=_TIME,
    NextToken=_ANY,
    ScanBy=_SCAN,
    MaxDatapoints=_WHOLE,
    LabelOptions=_structure(Timezone=_ANY),
)
METRIC_DATA_OUTPUT: Final = _structure(
    MetricDataResults=ListOf(
        _structure(
            Id=_NAME,
            Label=_ANY,
            Timestamps=ListOf(_TIME),
            Values=ListOf(_REAL),
            StatusCode=Text(choices=("Complete", "InternalError", "PartialData", "Forbidden")),
            Messages=_MESSAGES,
        )
    ),
    NextToken=_ANY,
    Messages=_MESSAGES,
)
METRIC_STATISTICS_INPUT: Final = _structure(
    *("Namespace", "MetricName", "StartTime", "EndTime", "Period"),
    Namespace=_NAMESPACE,
    MetricName=_NAME,
    Dimensions=_DIMENSIONS,
    StartTime=_TIME,
    EndTime=_TIME,
    Period=_COUNT,
    Statistics=ListOf(_STATISTIC, 1, 5),
    ExtendedStatistics=ListOf(_ANY, 1, 10),
    Unit=_UNIT,
)
METRIC_STATISTICS_OUTPUT: Final = _structure(
    Label=_ANY,
    Datapoints=ListOf(
        _structure(
            Timestamp=_TIME,
            **dict.fromkeys(_STATISTICS, _REAL),
            Unit=_UNIT,
            ExtendedStatistics=MapOf(_REAL),
        )
    ),
)

SCRAPE_OUTPUT: Final = _structure(Body=_ANY)

# Alarms

_ACTIONS: Final = ListOf(_ARN, items_max=5)
_TAGS: Final = ListOf(_structure("Key", "Value", Key=Text(1, 128), Value=Text(0, 256)))
_TAG_KEYS: Final = ListOf(Text(1, 128), 1, 50)
_WINDOW: Final = _structure(WallClockWindow=_structure(Timezone=Text(1, 50)), SlidingWindow=_structure())
_WARM_UP: Final = _structure(
    "WarmUpPeriodDurationInMinutes",
    WarmUpPeriodDurationInMinutes=Whole(1, 2880),
    OnlyStartEvaluatingAfterWarmUpPeriodEnds=_FLAG,
)
_CRITERIA: Final = _structure(
    PromQLCriteria=_structure(
        "Query", Query=Text(1, 10_000), PendingPeriod=Whole(0, 86_400), RecoveryPeriod=Whole(0, 86_400)
    )
)
_ACTION_CONFIGURATION: Final = _structure(
    AlarmTagsPropagation=_structure(
        "Enabled", Enabled=_FLAG, IncludedTagKeys=_TAG_KEYS, ExcludedTagKeys=_TAG_KEYS
    )
)
_ALARM_NAMES: Final = ListOf(_NAME, items_max=100)
_ALARM_TYPES: Final = ListOf(Text(choices=("CompositeAlarm", "MetricAlarm", "LogAlarm")))
_RECORDS: Final = Whole(1, 100)
_DESCRIPTION: Final = Text(0, 1024)
_REASON: Final = Text(0, 1023)
_REASON_DATA: Final = Text(0, 4000)

METRIC_ALARM_INPUT: Final = _structure(
    "AlarmName",
    AlarmName=_NAME,
    AlarmDescription=_DESCRIPTION,
    ActionsEnabled=_FLAG,
    OKActions=_ACTIONS,
    AlarmActions=_ACTIONS,
    InsufficientDataActions=_ACTIONS,
    MetricName=_NAME,
    Namespace=_NAMESPACE,
    Statistic=_STATISTIC,
    ExtendedStatistic=_ANY,
    Dimensions=_DIMENSIONS,
    Period=_COUNT,
    Unit=_UNIT,
    EvaluationPeriods=_COUNT,
    DatapointsToAlarm=_COUNT,
    Threshold=_REAL,
    ComparisonOperator=_COMPARISON,
    TreatMissingData=_NAME,
    EvaluateLowSampleCountPercentile=_NAME,
    Metrics=_QUERIES,
    Tags=_TAGS,
    ThresholdMetricId=_NAME,
    EvaluationWindow=_WINDOW,
    WarmUpConfiguration=_WARM_UP,
    EvaluationCriteria=_CRITERIA,
    EvaluationInterval=Whole(10, 3600),
    ActionConfiguration=_ACTION_CONFIGURATION,
)
_ALARMS: Final = ListOf(
    _structure(
        AlarmName=_NAME,
        AlarmArn=_ANY,
        AlarmDescription=_DESCRIPTION,
        AlarmConfigurationUpdatedTimestamp=_TIME,
        ActionsEnabled=_FLAG,
        OKActions=_ACTIONS,
        AlarmActions=_ACTIONS,
        InsufficientDataActions=_ACTIONS,
        StateValue=_STATE,
        StateReason=_REASON,
        StateReasonData=_REASON_DATA,
        StateUpdatedTimestamp=_TIME,
        MetricName=_NAME,
        Namespace=_NAMESPACE,
        Statistic=_STATISTIC,
        Dimensions=_DIMENSIONS,
        Period=_COUNT,
        Unit=_UNIT,
        EvaluationPeriods=_COUNT,
        Threshold=_REAL,
        ComparisonOperator=_COMPARISON,
        ExtendedStatistic=_ANY,
        TreatMissingData=_NAME,
        EvaluateLowSampleCountPercentile=_NAME,
        DatapointsToAlarm=_COUNT,
        Metrics=_QUERIES,
        ThresholdMetricId=_NAME,
        EvaluationState=Text(choices=("PARTIAL_DATA", "EVALUATION_FAILURE", "EVALUATION_ERROR")),
        StateTransitionedTimestamp=_TIME,
        EvaluationWindow=_WINDOW,
        WarmUpConfiguration=_WARM_UP,
        EvaluationCriteria=_CRITERIA,
        EvaluationInterval=_COUNT,
        ActionConfiguration=_ACTION_CONFIGURATION,
    )
)
DESCRIBE_ALARMS_INPUT: Final = _structure(
    AlarmNames=_ALARM_NAMES,
    AlarmNamePrefix=_NAME,
    AlarmTypes=_ALARM_TYPES,
    ChildrenOfAlarmName=_NAME,
    ParentsOfAlarmName=_NAME,
    StateValue=_STATE,
    ActionPrefix=_ARN,
    MaxRecords=_RECORDS,
    NextToken=_ANY,
)
DESCRIBE_ALARMS_OUTPUT: Final = _structure(MetricAlarms=_ALARMS, NextToken=_ANY)
ALARMS_FOR_METRIC_INPUT: Final = _structure(
    *("MetricName", "Namespace"),
    MetricName=_NAME,
    Namespace=_NAMESPACE,
    Statistic=_STATISTIC,
    ExtendedStatistic=_ANY,
    Dimensions=_DIMENSIONS,
    Period=_COUNT,
    Unit=_UNIT,
)
ALARMS_FOR_METRIC_OUTPUT: Final = _structure(MetricAlarms=_ALARMS)
_HISTORY_ITEM_TYPE: Final = Text(
    choices=(
        "ConfigurationUpdate",
        "StateUpdate",
        "Action",
        "AlarmContributorStateUpdate",
        "AlarmContributorAction",
    )
)
_CONTRIBUTOR: Final = Text(1, 16)
ALARM_HISTORY_INPUT: Final = _structure(
    AlarmName=_NAME,
    AlarmContributorId=_CONTRIBUTOR,
    AlarmTypes=_ALARM_TYPES,
    HistoryItemType=_HISTORY_ITEM_TYPE,
    StartDate=_TIME,
    EndDate=_TIME,
    MaxRecords=_RECORDS,
    NextToken=_ANY,
    ScanBy=_SCAN,
)
ALARM_HISTORY_OUTPUT: Final = _structure(
    AlarmHistoryItems=ListOf(
        _structure(
            AlarmName=_NAME,
            AlarmContributorId=_CONTRIBUTOR,
            AlarmType=Text(choices=("CompositeAlarm", "MetricAlarm", "LogAlarm")),
            Timestamp=_TIME,
            HistoryItemType=_HISTORY_ITEM_TYPE,
            HistorySummary=_ANY,
            HistoryData=_ANY,
            AlarmContributorAttributes=MapOf(_ANY),
        )
    ),
    NextToken=_ANY,
)
ALARM_NAMES_INPUT: Final = _structure("AlarmNames", AlarmNames=_ALARM_NAMES)
ALARM_STATE_INPUT: Final = _structure(
    *("AlarmName", "StateValue", "StateReason"),
    AlarmName=_NAME,
    StateValue=_STATE,
    StateReason=_REASON,
    StateReasonData=_REASON_DATA,
)

# Tags

TAG_INPUT: Final = _structure("ResourceARN", "Tags", ResourceARN=_ARN, Tags=_TAGS)
UNTAG_INPUT: Final = _structure("ResourceARN", "TagKeys", ResourceARN=_ARN, TagKeys=ListOf(Text(1, 128)))
LIST_TAGS_INPUT: Final = _structure("ResourceARN", ResourceARN=_ARN)
LIST_TAGS_OUTPUT: Final = _structure(Tags=_TAGS)
EMPTY: Final = _structure()

# Dashboards

PUT_DASHBOARD_INPUT: Final = _structure(
    "DashboardName", "DashboardBody", DashboardName=_ANY, DashboardBody=_ANY, Tags=_TAGS
)
PUT_DASHBOARD_OUTPUT: Final = _structure(
    DashboardValidationMessages=ListOf(_structure(DataPath=_ANY, Message=_ANY))
)
DASHBOARD_INPUT: Final = _structure("DashboardName", DashboardName=_ANY)
DASHBOARD_OUTPUT: Final = _structure(DashboardArn=_ANY, DashboardBody=_ANY, DashboardName=_ANY)
LIST_DASHBOARDS_INPUT: Final = _structure(DashboardNamePrefix=_ANY, NextToken=_ANY)
LIST_DASHBOARDS_OUTPUT: Final = _structure(
    DashboardEntries=ListOf(
        _structure(DashboardName=_ANY, DashboardArn=_ANY, LastModified=_TIME, Size=Whole(0, _LONG_MAX))
    ),
    NextToken=_ANY,
)
# The model knows no limit. Each name is authorized by itself.
DASHBOARD_NAMES_INPUT: Final = _structure("DashboardNames", DashboardNames=ListOf(_ANY, items_max=100))
