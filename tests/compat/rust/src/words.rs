//! The server as a scenario sees it, and the words scenarios are written with.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::config::{Builder, Credentials};
use aws_sdk_sqs::types::{
    Message, MessageSystemAttributeName, QueueAttributeName, SendMessageBatchRequestEntry,
};
use aws_sdk_sqs::Client;

const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub struct World {
    pub sqs: Client,
    pub prefix: String,
    config: SdkConfig,
    queue_count: Arc<AtomicUsize>,
}

impl World {
    /// Region, endpoint and credentials as the SDK reads them.
    pub async fn from_environment() -> Self {
        let config = aws_config::defaults(BehaviorVersion::latest())
            // The one client that can be built without TLS.
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .load()
            .await;
        World {
            sqs: Client::new(&config),
            prefix: format!("rust-{}", std::process::id()),
            config,
            queue_count: Arc::default(),
        }
    }

    /// A client that comes by the URL in this environment variable.
    pub fn by(&self, variable: &str) -> Client {
        let url = std::env::var(variable).expect(variable);
        Client::from_conf(Builder::from(&self.config).endpoint_url(url).build())
    }

    pub fn with_key(&self, id: &str, secret: &str) -> Client {
        let credentials = Credentials::new(id, secret, None, None, "given");
        Client::from_conf(Builder::from(&self.config).credentials_provider(credentials).build())
    }

    pub fn new_name(&self) -> String {
        format!("{}-{}", self.prefix, self.queue_count.fetch_add(1, Ordering::Relaxed))
    }

    pub async fn queue(&self) -> String {
        let created = self.sqs.create_queue().queue_name(self.new_name()).send().await.unwrap();
        created.queue_url.unwrap()
    }

    pub async fn fifo_queue(&self) -> String {
        let created = self
            .sqs
            .create_queue()
            .queue_name(self.new_name() + ".fifo")
            .attributes(QueueAttributeName::FifoQueue, "true")
            .send()
            .await;
        created.unwrap().queue_url.unwrap()
    }

    /// An attribute of a queue; empty when it has none.
    pub async fn attribute(&self, url: &str, name: QueueAttributeName) -> String {
        let answer =
            self.sqs.get_queue_attributes().queue_url(url).attribute_names(name.clone()).send().await;
        answer.unwrap().attributes.and_then(|mut all| all.remove(&name)).unwrap_or_default()
    }

    pub async fn arn(&self, url: &str) -> String {
        self.attribute(url, QueueAttributeName::QueueArn).await
    }

    /// How many messages are visible, in flight and delayed.
    pub async fn counts(&self, url: &str) -> [usize; 3] {
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        let asked = self.sqs.get_queue_attributes().queue_url(url).set_attribute_names(Some(names.to_vec()));
        let answer = asked.send().await.unwrap().attributes.unwrap();
        names.map(|name| answer[&name].parse().unwrap())
    }

    pub async fn send(&self, url: &str, bodies: &[&str]) {
        for body in bodies {
            self.sqs.send_message().queue_url(url).message_body(*body).send().await.unwrap();
        }
    }

    pub async fn receive_one(&self, url: &str) -> Message {
        self.receive(url, 1).await.remove(0)
    }

    /// So many messages, with all their attributes, received in one or several calls.
    pub async fn receive(&self, url: &str, count: usize) -> Vec<Message> {
        let end = Instant::now() + PATIENCE;
        let mut messages = Vec::new();
        while messages.len() < count {
            assert!(Instant::now() < end, "only {} of {count} messages came", messages.len());
            messages.extend(self.poll(url, (count - messages.len()).min(10) as i32, 5).await);
        }
        messages
    }

    /// What one call receives.
    pub async fn poll(&self, url: &str, count_max: i32, wait_s: i32) -> Vec<Message> {
        let asked = self
            .sqs
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(count_max)
            .wait_time_seconds(wait_s)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All);
        asked.send().await.unwrap().messages.unwrap_or_default()
    }

    pub async fn hide(&self, url: &str, message: &Message, seconds: i32) {
        let asked = self.sqs.change_message_visibility().queue_url(url).visibility_timeout(seconds);
        asked.set_receipt_handle(message.receipt_handle.clone()).send().await.unwrap();
    }

    pub async fn delete(&self, url: &str, message: &Message) {
        let asked = self.sqs.delete_message().queue_url(url);
        asked.set_receipt_handle(message.receipt_handle.clone()).send().await.unwrap();
    }
}

/// Asks until the answer is true.
#[macro_export]
macro_rules! eventually {
    ($question:expr, $found:expr) => {{
        let end = std::time::Instant::now() + std::time::Duration::from_secs(15);
        while !$question {
            assert!(std::time::Instant::now() < end, "found: {:?}", $found);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }};
}

pub fn entry(id: &str, body: &str) -> SendMessageBatchRequestEntry {
    SendMessageBatchRequestEntry::builder().id(id).message_body(body).build().unwrap()
}

pub fn body(message: &Message) -> &str {
    message.body().unwrap_or_default()
}

pub fn sorted_bodies(messages: &[Message]) -> Vec<&str> {
    let mut bodies: Vec<&str> = messages.iter().map(body).collect();
    bodies.sort_unstable();
    bodies
}

pub fn system_attribute(message: &Message, name: MessageSystemAttributeName) -> &str {
    message.attributes().and_then(|all| all.get(&name)).map_or("", String::as_str)
}
