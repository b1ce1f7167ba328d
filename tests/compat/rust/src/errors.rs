//! Errors, each caught as the variant the SDK makes of it.

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::operation::list_queues::ListQueuesError;
use aws_sdk_sqs::operation::send_message_batch::SendMessageBatchError;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};
use aws_sdk_sqs::Client;

use crate::words::{entry, World};

async fn refusal(stranger: Client) -> (u16, String) {
    let error: SdkError<ListQueuesError> = stranger.list_queues().send().await.unwrap_err();
    let status = error.raw_response().unwrap().status().as_u16();
    (status, error.code().unwrap_or_default().to_string())
}

pub async fn wrong_secret(world: World) {
    let key = std::env::var("AWS_ACCESS_KEY_ID").unwrap();

    let refused = refusal(world.with_key(&key, "not the secret")).await;

    assert_eq!(refused, (403, "SignatureDoesNotMatch".to_string()));
}

pub async fn unknown_key(world: World) {
    let refused = refusal(world.with_key("AKIAIOSFODNN7EXAMPLE", "not the secret")).await;

    assert_eq!(refused, (403, "InvalidClientTokenId".to_string()));
}

pub async fn without_class(world: World) {
    let (url, fifo) = (world.queue().await, world.fifo_queue().await);

    let invalid =
        world.sqs.receive_message().queue_url(&url).max_number_of_messages(11).send().await.unwrap_err();
    let missing = world.sqs.send_message().queue_url(&fifo).message_body("m").send().await.unwrap_err();

    assert_eq!(invalid.code(), Some("InvalidParameterValue"));
    assert_eq!(missing.code(), Some("MissingParameter"));
    assert_eq!(invalid.raw_response().unwrap().status().as_u16(), 400);
}

macro_rules! is {
    ($call:expr, $variant:ident) => {
        let error = $call.send().await.unwrap_err().into_service_error();
        assert!(error.$variant(), "{error:?}");
        assert!(error.message().is_some_and(|message| !message.is_empty()), "{error:?}");
    };
}

pub async fn queue_does_not_exist(world: World) {
    is!(world.sqs.get_queue_url().queue_name(world.new_name()), is_queue_does_not_exist);
}

pub async fn queue_name_exists(world: World) {
    let name = world.new_name();
    world.sqs.create_queue().queue_name(&name).send().await.unwrap();

    let other = world.sqs.create_queue().queue_name(&name).attributes(QueueAttributeName::DelaySeconds, "9");
    is!(other, is_queue_name_exists);
}

pub async fn queue_deleted_recently(world: World) {
    let name = world.new_name();
    let created = world.sqs.create_queue().queue_name(&name).send().await.unwrap();
    world.sqs.delete_queue().set_queue_url(created.queue_url).send().await.unwrap();

    is!(world.sqs.create_queue().queue_name(&name), is_queue_deleted_recently);
}

pub async fn receipt_handle_is_invalid(world: World) {
    let url = world.queue().await;

    is!(world.sqs.delete_message().queue_url(&url).receipt_handle("garbage"), is_receipt_handle_is_invalid);
}

pub async fn purge_queue_in_progress(world: World) {
    let url = world.queue().await;
    world.sqs.purge_queue().queue_url(&url).send().await.unwrap();

    is!(world.sqs.purge_queue().queue_url(&url), is_purge_queue_in_progress);
}

async fn batch_error(world: &World, entries: Vec<SendMessageBatchRequestEntry>) -> SendMessageBatchError {
    let url = world.queue().await;
    let sent = world.sqs.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await;
    sent.unwrap_err().into_service_error()
}

pub async fn batch_entry_ids_not_distinct(world: World) {
    let error = batch_error(&world, vec![entry("a", "1"), entry("a", "2")]).await;

    assert!(error.is_batch_entry_ids_not_distinct(), "{error:?}");
}

pub async fn empty_batch_request(world: World) {
    let error = batch_error(&world, vec![]).await;

    assert!(error.is_empty_batch_request(), "{error:?}");
}

pub async fn too_many_entries_in_batch_request(world: World) {
    let error = batch_error(&world, (0..11).map(|number| entry(&format!("e{number}"), "m")).collect()).await;

    assert!(error.is_too_many_entries_in_batch_request(), "{error:?}");
}

pub async fn invalid_batch_entry_id(world: World) {
    let error = batch_error(&world, vec![entry("not an id", "m")]).await;

    assert!(error.is_invalid_batch_entry_id(), "{error:?}");
}

pub async fn batch_request_too_long(world: World) {
    let long = "m".repeat(600_000);

    let error = batch_error(&world, vec![entry("a", &long), entry("b", &long)]).await;

    assert!(error.is_batch_request_too_long(), "{error:?}");
}

pub async fn invalid_message_contents(world: World) {
    let url = world.queue().await;

    is!(world.sqs.send_message().queue_url(&url).message_body("\u{1}"), is_invalid_message_contents);
}

pub async fn invalid_attribute_name(world: World) {
    let url = world.queue().await;

    let asked = world.sqs.get_queue_attributes().queue_url(&url).attribute_names("Colour".into());
    is!(asked, is_invalid_attribute_name);
}

pub async fn invalid_attribute_value(world: World) {
    let asked = world.sqs.create_queue().queue_name(world.new_name());

    is!(asked.attributes(QueueAttributeName::VisibilityTimeout, "-1"), is_invalid_attribute_value);
}

pub async fn resource_not_found(world: World) {
    let arn = world.arn(&world.queue().await).await + "-none";

    is!(world.sqs.start_message_move_task().source_arn(arn), is_resource_not_found_exception);
}
