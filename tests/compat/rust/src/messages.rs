//! Messages: sent, received, changed, deleted; one by one, in batches, in order, many at a time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_sqs::operation::send_message::SendMessageOutput;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
    MessageAttributeValue, MessageSystemAttributeName, MessageSystemAttributeNameForSends,
    MessageSystemAttributeValue,
};
use md5::{Digest, Md5};
use tokio::task::JoinSet;

use crate::words::{body, entry, sorted_bodies, system_attribute, World};

pub async fn send_receive_delete(world: World) {
    let url = world.queue().await;

    let sent = world.sqs.send_message().queue_url(&url).message_body("two coffees").send().await.unwrap();
    let message = world.receive_one(&url).await;
    world.delete(&url, &message).await;

    assert_eq!(body(&message), "two coffees");
    assert_eq!(message.message_id, sent.message_id);
    assert_eq!(system_attribute(&message, MessageSystemAttributeName::ApproximateReceiveCount), "1");
    assert_ne!(system_attribute(&message, MessageSystemAttributeName::SenderId), "");
    assert_eq!(world.counts(&url).await, [0, 0, 0]);
}

pub async fn every_character(world: World) {
    let url = world.queue().await;
    let text = "\t\n\r &<>\"'/\\ \u{7f}\u{85} äß \u{d7ff}\u{e000}\u{fffd} \u{10000}\u{1f600}\u{10ffff}";

    world.send(&url, &[text]).await;

    assert_eq!(body(&world.receive_one(&url).await), text);
}

pub async fn one_mebibyte(world: World) {
    let url = world.queue().await;
    let text = "ä".repeat(512 * 1024);

    world.send(&url, &[&text]).await;

    assert!(body(&world.receive_one(&url).await) == text, "another body came");
}

fn text_attribute(data_type: &str, value: &str) -> MessageAttributeValue {
    MessageAttributeValue::builder().data_type(data_type).string_value(value).build().unwrap()
}

fn some_attributes() -> BTreeMap<String, MessageAttributeValue> {
    let bytes: Vec<u8> = (0..=255).collect();
    let binary = MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new(bytes));
    BTreeMap::from([
        ("text".to_string(), text_attribute("String", "ä ☕")),
        ("kind".to_string(), text_attribute("String.kind", "custom")),
        ("number".to_string(), text_attribute("Number", "-12.5e3")),
        ("bytes".to_string(), binary.build().unwrap()),
    ])
}

async fn send_with_attributes(world: &World, url: &str) -> SendMessageOutput {
    let attributes: HashMap<_, _> = some_attributes().into_iter().collect();
    let asked =
        world.sqs.send_message().queue_url(url).message_body("m").set_message_attributes(Some(attributes));
    asked.send().await.unwrap()
}

pub async fn attributes(world: World) {
    let url = world.queue().await;
    let trace = "Root=1-67891233-abcdef012345678912345678";
    let header =
        MessageSystemAttributeValue::builder().data_type("String").string_value(trace).build().unwrap();

    send_with_attributes(&world, &url).await;
    let message = world.receive_one(&url).await;
    world.delete(&url, &message).await;
    let traced = world.sqs.send_message().queue_url(&url).message_body("m");
    let traced = traced.message_system_attributes(MessageSystemAttributeNameForSends::AwsTraceHeader, header);
    traced.send().await.unwrap();
    let with_trace = world.receive_one(&url).await;

    let found: BTreeMap<_, _> = message.message_attributes.clone().unwrap().into_iter().collect();
    assert_eq!(found, some_attributes());
    assert_eq!(system_attribute(&with_trace, MessageSystemAttributeName::AwsTraceHeader), trace);
}

/// This SDK leaves checking them to its user.
pub async fn checksums(world: World) {
    let url = world.queue().await;

    let sent = send_with_attributes(&world, &url).await;
    let message = world.receive_one(&url).await;

    let of_body = hex(Md5::digest("m"));
    let of_attributes = md5_of(&some_attributes());
    assert_eq!(sent.md5_of_message_body(), Some(of_body.as_str()));
    assert_eq!(message.md5_of_body(), Some(of_body.as_str()));
    assert_eq!(sent.md5_of_message_attributes(), Some(of_attributes.as_str()));
    assert_eq!(message.md5_of_message_attributes(), Some(of_attributes.as_str()));
}

fn md5_of(attributes: &BTreeMap<String, MessageAttributeValue>) -> String {
    fn add(digest: &mut Md5, value: &[u8]) {
        digest.update((value.len() as u32).to_be_bytes());
        digest.update(value);
    }
    let mut digest = Md5::new();
    for (name, attribute) in attributes {
        add(&mut digest, name.as_bytes());
        add(&mut digest, attribute.data_type().as_bytes());
        if let Some(bytes) = attribute.binary_value() {
            digest.update([2]);
            add(&mut digest, bytes.as_ref());
        } else {
            digest.update([1]);
            add(&mut digest, attribute.string_value().unwrap().as_bytes());
        }
    }
    hex(digest.finalize())
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

// -- batches

pub async fn send_batch_with_failure(world: World) {
    let url = world.queue().await;
    let entries = vec![entry("good", "one"), entry("bad", "\u{1}"), entry("also_good", "two")];

    let answer =
        world.sqs.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await.unwrap();

    assert_eq!(answer.successful().iter().map(|e| e.id()).collect::<Vec<_>>(), ["good", "also_good"]);
    assert_eq!(failures(answer.failed()), ["bad: InvalidMessageContents"]);
    assert!(answer.failed()[0].sender_fault());
    assert_eq!(sorted_bodies(&world.receive(&url, 2).await), ["one", "two"]);
}

fn failures(failed: &[BatchResultErrorEntry]) -> Vec<String> {
    failed.iter().map(|entry| format!("{}: {}", entry.id(), entry.code())).collect()
}

pub async fn handle_batches_with_failure(world: World) {
    let url = world.queue().await;
    world.send(&url, &["one", "two"]).await;
    let messages = world.receive(&url, 2).await;
    let hide = |id: &str, handle: &str| {
        ChangeMessageVisibilityBatchRequestEntry::builder()
            .id(id)
            .receipt_handle(handle)
            .visibility_timeout(0)
    };
    let delete = |id: &str, handle: &str| {
        DeleteMessageBatchRequestEntry::builder().id(id).receipt_handle(handle).build().unwrap()
    };
    let handles: Vec<&str> = messages.iter().map(|message| message.receipt_handle().unwrap()).collect();

    let hidden = world.sqs.change_message_visibility_batch().queue_url(&url);
    let hidden = hidden.entries(hide("a", handles[0]).build().unwrap());
    let hidden = hidden.entries(hide("b", "garbage").build().unwrap()).send().await.unwrap();
    let again = world.receive_one(&url).await;
    let deleted = world.sqs.delete_message_batch().queue_url(&url);
    let deleted = deleted.entries(delete("a", again.receipt_handle().unwrap()));
    let deleted = deleted.entries(delete("b", "garbage")).entries(delete("c", handles[1]));
    let deleted = deleted.send().await.unwrap();

    assert_eq!(again.message_id, messages[0].message_id);
    assert_eq!(hidden.successful().iter().map(|e| e.id()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(failures(hidden.failed()), ["b: ReceiptHandleIsInvalid"]);
    assert_eq!(deleted.successful().iter().map(|e| e.id()).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!(failures(deleted.failed()), ["b: ReceiptHandleIsInvalid"]);
    assert_eq!(world.counts(&url).await, [0, 0, 0]);
}

// -- FIFO

async fn send_to_group(world: &World, url: &str, body: &str, group: &str, id: &str) -> SendMessageOutput {
    let asked = world.sqs.send_message().queue_url(url).message_body(body);
    asked.message_group_id(group).message_deduplication_id(id).send().await.unwrap()
}

pub async fn fifo_order(world: World) {
    let url = world.fifo_queue().await;
    let mut numbers: Vec<u128> = Vec::new();
    for text in ["a1", "a2", "b1", "a3", "b2"] {
        let sent = send_to_group(&world, &url, text, &text[..1], text).await;
        numbers.push(sent.sequence_number().unwrap().parse().unwrap());
    }

    let first = world.receive_one(&url).await;
    let others = world.poll(&url, 10, 0).await;
    for message in others.iter().chain([&first]) {
        world.delete(&url, message).await;
    }
    let last = world.poll(&url, 10, 0).await;

    assert_eq!(body(&first), "a1");
    assert_eq!(system_attribute(&first, MessageSystemAttributeName::MessageGroupId), "a");
    assert_eq!(system_attribute(&first, MessageSystemAttributeName::MessageDeduplicationId), "a1");
    let number = system_attribute(&first, MessageSystemAttributeName::SequenceNumber);
    assert_eq!(number.parse(), Ok(numbers[0]));
    assert_eq!(others.iter().map(body).collect::<Vec<_>>(), ["b1", "b2"]);
    assert_eq!(last.iter().map(body).collect::<Vec<_>>(), ["a2", "a3"]);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

pub async fn fifo_duplicate(world: World) {
    let url = world.fifo_queue().await;

    let first = send_to_group(&world, &url, "one", "g", "same").await;
    let second = send_to_group(&world, &url, "two", "g", "same").await;

    assert_eq!(first.message_id, second.message_id);
    assert_eq!(first.sequence_number, second.sequence_number);
    assert_eq!(sorted_bodies(&world.poll(&url, 10, 0).await), ["one"]);
}

// -- waiting and hiding

pub async fn long_poll_woken(world: World) {
    let url = world.queue().await;
    let waiting = tokio::spawn({
        let (world, url) = (world.clone(), url.clone());
        async move { world.poll(&url, 1, 20).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;

    world.send(&url, &["wake up"]).await;

    let messages = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("not woken").unwrap();
    assert_eq!(sorted_bodies(&messages), ["wake up"]);
}

pub async fn empty_queue(world: World) {
    let url = world.queue().await;

    let answer = world.sqs.receive_message().queue_url(&url).wait_time_seconds(1).send().await.unwrap();

    assert_eq!(answer.messages, None);
}

pub async fn poll_given_up(world: World) {
    let url = world.queue().await;
    let given_up = tokio::time::timeout(Duration::from_millis(500), world.poll(&url, 1, 20)).await;
    assert!(given_up.is_err(), "the poll had an answer");
    tokio::time::sleep(Duration::from_secs(1)).await; // the server sees soon that nobody listens any more

    world.send(&url, &["for the living"]).await;

    assert_eq!(body(&world.receive_one(&url).await), "for the living");
}

pub async fn change_visibility(world: World) {
    let url = world.queue().await;
    world.send(&url, &["m"]).await;
    let first = world.receive_one(&url).await;

    world.hide(&url, &first, 600).await;
    let hidden = world.poll(&url, 1, 0).await;
    world.hide(&url, &first, 0).await;
    let second = world.receive_one(&url).await;

    assert_eq!(hidden, []);
    assert_eq!(second.message_id, first.message_id);
    assert_eq!(system_attribute(&second, MessageSystemAttributeName::ApproximateReceiveCount), "2");
}

// -- the network

pub async fn retried_send(world: World) {
    let url = world.queue().await;
    let lossy = world.by("SQS_LOSSY_ENDPOINT");

    let sent = lossy.send_message().queue_url(&url).message_body("once").send().await.unwrap();

    assert_eq!(world.counts(&url).await, [1, 0, 0]);
    assert_eq!(world.receive_one(&url).await.message_id, sent.message_id);
}

pub async fn retried_batch(world: World) {
    let url = world.queue().await;
    let lossy = world.by("SQS_LOSSY_ENDPOINT");
    let entries = vec![entry("a", "same"), entry("b", "same")];

    let answer = lossy.send_message_batch().queue_url(&url).set_entries(Some(entries)).send().await.unwrap();

    assert_eq!(answer.successful().len(), 2);
    assert_eq!(world.counts(&url).await, [2, 0, 0]);
}

pub async fn many_at_a_time(world: World) {
    let url = world.queue().await;
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let (world, url) = (world.clone(), url.clone());
        tasks.spawn(async move { world.send(&url, &[&number.to_string()]).await });
    }
    let mut receiving = JoinSet::new();
    for _ in 0..4 {
        let (world, url) = (world.clone(), url.clone());
        receiving.spawn(async move {
            let messages = world.receive(&url, 10).await;
            for message in &messages {
                world.delete(&url, message).await;
            }
            messages
        });
    }

    tasks.join_all().await;
    let messages = receiving.join_all().await.concat();

    let mut numbers: Vec<u32> = messages.iter().map(|message| body(message).parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
    assert_eq!(world.counts(&url).await, [0, 0, 0]);
}
