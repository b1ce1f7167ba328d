//! Queues: made, found, described, tagged, emptied, deleted; and dead letters that go back.

use std::collections::HashMap;

use aws_sdk_sqs::types::{ListMessageMoveTasksResultEntry, QueueAttributeName};

use crate::eventually;
use crate::words::{sorted_bodies, World};

pub async fn endpoint_from_environment(world: World) {
    let endpoint = std::env::var("AWS_ENDPOINT_URL_SQS").unwrap();

    assert!(world.queue().await.starts_with(&(endpoint + "/")));
}

pub async fn create_find_list_delete(world: World) {
    let name = world.new_name();
    let mut urls = Vec::new();
    for suffix in ["-a", "-b", "-c"] {
        let created = world.sqs.create_queue().queue_name(name.clone() + suffix).send().await.unwrap();
        urls.push(created.queue_url.unwrap());
    }

    let found = world.sqs.get_queue_url().queue_name(name.clone() + "-b").send().await.unwrap();
    let page = world.sqs.list_queues().queue_name_prefix(&name).max_results(2).send().await.unwrap();
    let mut pages = world.sqs.list_queues().queue_name_prefix(&name).max_results(2).into_paginator().send();
    let mut listed = Vec::new();
    while let Some(page) = pages.next().await {
        listed.extend(page.unwrap().queue_urls.unwrap_or_default());
    }
    for url in &urls {
        world.sqs.delete_queue().queue_url(url).send().await.unwrap();
    }
    let left = world.sqs.list_queues().queue_name_prefix(&name).send().await.unwrap();

    assert_eq!(found.queue_url(), Some(urls[1].as_str()));
    assert_eq!(page.queue_urls().len(), 2);
    assert!(page.next_token().is_some());
    listed.sort_unstable();
    assert_eq!(listed, urls);
    assert_eq!(left.queue_urls, None);
}

pub async fn attributes(world: World) {
    let created = world.sqs.create_queue().queue_name(world.new_name());
    let created = created.attributes(QueueAttributeName::DelaySeconds, "3").send().await.unwrap();
    let url = created.queue_url.unwrap();

    let set = world.sqs.set_queue_attributes().queue_url(&url);
    set.attributes(QueueAttributeName::VisibilityTimeout, "77").send().await.unwrap();
    let all = world.sqs.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All);
    let all = all.send().await.unwrap().attributes.unwrap();
    world.send(&url, &["later"]).await;

    assert_eq!(all[&QueueAttributeName::DelaySeconds], "3");
    assert_eq!(all[&QueueAttributeName::VisibilityTimeout], "77");
    assert_eq!(all[&QueueAttributeName::MaximumMessageSize], "1048576");
    assert_eq!(all[&QueueAttributeName::SqsManagedSseEnabled], "true");
    assert_eq!(world.counts(&url).await, [0, 0, 1]);
}

pub async fn tags(world: World) {
    let url = world.queue().await;

    let tag = world.sqs.tag_queue().queue_url(&url).tags("team", "coffee").tags("stage", "test");
    tag.send().await.unwrap();
    world.sqs.untag_queue().queue_url(&url).tag_keys("stage").send().await.unwrap();

    let tags = world.sqs.list_queue_tags().queue_url(&url).send().await.unwrap().tags;
    assert_eq!(tags, Some(HashMap::from([("team".to_string(), "coffee".to_string())])));
}

pub async fn purge(world: World) {
    let url = world.queue().await;
    world.send(&url, &["one", "two"]).await;
    world.receive_one(&url).await;

    world.sqs.purge_queue().queue_url(&url).send().await.unwrap();

    eventually!(world.counts(&url).await == [0, 0, 0], world.counts(&url).await);
}

pub async fn permission(world: World) {
    let url = world.queue().await;

    let add = world.sqs.add_permission().queue_url(&url).label("readers");
    add.aws_account_ids("111122223333").actions("ReceiveMessage").send().await.unwrap();
    let policy = world.attribute(&url, QueueAttributeName::Policy).await;
    world.sqs.remove_permission().queue_url(&url).label("readers").send().await.unwrap();

    assert!(policy.contains("readers") && policy.contains("111122223333"), "{policy}");
    assert!(!world.attribute(&url, QueueAttributeName::Policy).await.contains("readers"));
}

// -- dead letters

/// A queue whose messages die after one receive, and its dead-letter queue with these in it.
async fn queue_with_dead_letters(world: &World, bodies: &[&str]) -> (String, String) {
    let dead = world.queue().await;
    let policy = serde_json::json!({"deadLetterTargetArn": world.arn(&dead).await, "maxReceiveCount": 1});
    let created = world.sqs.create_queue().queue_name(world.new_name());
    let created = created.attributes(QueueAttributeName::RedrivePolicy, policy.to_string()).send().await;
    let source = created.unwrap().queue_url.unwrap();
    world.send(&source, bodies).await;
    eventually!(
        {
            let receive = world.sqs.receive_message().queue_url(&source);
            receive.max_number_of_messages(10).visibility_timeout(0).send().await.unwrap();
            world.counts(&dead).await[0] == bodies.len()
        },
        world.counts(&dead).await
    );
    (source, dead)
}

async fn move_task(world: &World, arn: &str) -> ListMessageMoveTasksResultEntry {
    let answer = world.sqs.list_message_move_tasks().source_arn(arn).send().await.unwrap();
    answer.results.unwrap().remove(0)
}

pub async fn move_back(world: World) {
    let (source, dead) = queue_with_dead_letters(&world, &["one", "two"]).await;
    let arn = world.arn(&dead).await;

    let started = world.sqs.start_message_move_task().source_arn(&arn).send().await.unwrap();
    let back = world.receive(&source, 2).await;
    eventually!(move_task(&world, &arn).await.status() == Some("COMPLETED"), move_task(&world, &arn).await);

    assert!(started.task_handle().is_some_and(|handle| !handle.is_empty()));
    assert_eq!(sorted_bodies(&back), ["one", "two"]);
    assert_eq!(move_task(&world, &arn).await.approximate_number_of_messages_moved(), 2);
    let sources = world.sqs.list_dead_letter_source_queues().queue_url(&dead).send().await.unwrap();
    assert_eq!(sources.queue_urls(), [source]);
}

pub async fn cancel_move(world: World) {
    let (_, dead) = queue_with_dead_letters(&world, &["1", "2", "3", "4", "5", "6", "7", "8", "9"]).await;
    let arn = world.arn(&dead).await;

    let start = world.sqs.start_message_move_task().source_arn(&arn).max_number_of_messages_per_second(1);
    let handle = start.send().await.unwrap().task_handle;
    assert_eq!(move_task(&world, &arn).await.task_handle, handle);
    world.sqs.cancel_message_move_task().set_task_handle(handle).send().await.unwrap();
    eventually!(move_task(&world, &arn).await.status() == Some("CANCELLED"), move_task(&world, &arn).await);

    assert!(world.counts(&dead).await[0] > 0);
}
