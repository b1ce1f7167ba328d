//! What every AWS SDK is asked to do, done by the SDK for Rust; prints one line of JSON for each scenario.

mod errors;
mod messages;
mod queues;
mod words;

use std::future::Future;

use serde_json::json;
use words::World;

/// Runs a scenario in a task of its own, so that one that panics is only that one's failure.
async fn report<F>(name: &str, scenario: impl FnOnce(World) -> F, world: &World)
where
    F: Future<Output = ()> + Send + 'static,
{
    let error = match tokio::spawn(scenario(world.clone())).await {
        Ok(()) => None,
        Err(failure) => Some(match failure.into_panic().downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other.downcast_ref::<&str>().map_or("panicked".into(), |text| text.to_string()),
        }),
    };
    println!(r#"{{"scenario": {}, "error": {}}}"#, json!(name), json!(error));
}

macro_rules! scenarios {
    ($world:expr, $($name:literal => $scenario:expr),+ $(,)?) => {
        $( report($name, $scenario, $world).await; )+
    };
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let world = &World::from_environment().await;
    scenarios! { world,
        "sends, receives and deletes a message" => messages::send_receive_delete,
        "carries every character SQS allows" => messages::every_character,
        "carries a message of 1 MiB" => messages::one_mebibyte,
        "carries string, number and binary attributes" => messages::attributes,
        "gets the checksums that SQS defines" => messages::checksums,
        "sends a batch of which one entry fails" => messages::send_batch_with_failure,
        "hides and deletes in batches of which one entry fails" => messages::handle_batches_with_failure,
        "keeps the order of a FIFO group" => messages::fifo_order,
        "stores a FIFO duplicate once" => messages::fifo_duplicate,
        "is woken from a long poll by a send" => messages::long_poll_woken,
        "gets nothing from an empty queue" => messages::empty_queue,
        "leaves no message to a poll it gave up" => messages::poll_given_up,
        "changes the visibility of a message" => messages::change_visibility,
        "stores a retried send once" => messages::retried_send,
        "stores a retried batch once" => messages::retried_batch,
        "sends and receives many at a time" => messages::many_at_a_time,
        "takes its endpoint from the environment" => queues::endpoint_from_environment,
        "creates, finds, lists and deletes queues" => queues::create_find_list_delete,
        "reads and sets queue attributes" => queues::attributes,
        "tags a queue" => queues::tags,
        "purges a queue" => queues::purge,
        "adds and removes a permission" => queues::permission,
        "moves dead letters back" => queues::move_back,
        "cancels a move task" => queues::cancel_move,
        "is refused with a wrong secret" => errors::wrong_secret,
        "is refused with an unknown key" => errors::unknown_key,
        "sees InvalidParameterValue and MissingParameter, which have no class" => errors::without_class,
        "catches QueueDoesNotExist" => errors::queue_does_not_exist,
        "catches QueueNameExists" => errors::queue_name_exists,
        "catches QueueDeletedRecently" => errors::queue_deleted_recently,
        "catches ReceiptHandleIsInvalid" => errors::receipt_handle_is_invalid,
        "catches PurgeQueueInProgress" => errors::purge_queue_in_progress,
        "catches BatchEntryIdsNotDistinct" => errors::batch_entry_ids_not_distinct,
        "catches EmptyBatchRequest" => errors::empty_batch_request,
        "catches TooManyEntriesInBatchRequest" => errors::too_many_entries_in_batch_request,
        "catches InvalidBatchEntryId" => errors::invalid_batch_entry_id,
        "catches BatchRequestTooLong" => errors::batch_request_too_long,
        "catches InvalidMessageContents" => errors::invalid_message_contents,
        "catches InvalidAttributeName" => errors::invalid_attribute_name,
        "catches InvalidAttributeValue" => errors::invalid_attribute_value,
        "catches ResourceNotFoundException" => errors::resource_not_found,
    }
}
