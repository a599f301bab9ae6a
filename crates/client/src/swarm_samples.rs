//! Requests of `/api/swarm/metrics`.

use std::pin::Pin;

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::{Stream, StreamExt};
use http::Method;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use skep_api::{
    exec::StreamRefusal,
    swarm::{SwarmSample, SwarmSamples},
};

use crate::{
    Answered, Client, Result,
    client::{error_in_stream, with_query},
};

/// The samples of a followed swarm.
pub type SampleStream = Pin<Box<dyn Stream<Item = Result<SwarmSample>> + Send>>;

impl Client {
    /// `GET /api/swarm/metrics`: the samples of the last 15 minutes, or those after `since`.
    ///
    /// # Errors
    /// `swarm_unavailable`, and those of every request: see [`crate::Error`].
    pub async fn swarm_samples(&self, since: Option<Timestamp>) -> Result<Answered<SwarmSamples>> {
        let since = since.map(|time| time.to_string());
        self.get(&with_query("api/swarm/metrics", &[("since", since)])).await
    }

    /// `GET /api/swarm/metrics?follow=true`: the samples as they are taken, from now on.
    ///
    /// # Errors
    /// As [`Client::swarm_samples`], from this call or as an item of the stream.
    pub async fn follow_swarm_samples(&self) -> Result<SampleStream> {
        let response = self.send(self.request(Method::GET, "api/swarm/metrics?follow=true")?).await?;
        let client = self.clone();
        let events = response.bytes_stream().eventsource().map(move |event| client.read_sample(event));
        Ok(Box::pin(events))
    }

    fn read_sample(
        &self,
        event: std::result::Result<Event, EventStreamError<reqwest::Error>>,
    ) -> Result<SwarmSample> {
        let event = event.map_err(|error| match error {
            EventStreamError::Transport(source) => self.request_failed(source),
            other => self.unexpected_answer(other.to_string()),
        })?;
        match event.event.as_str() {
            "sample" => self.sample_data(&event),
            "error" => {
                let StreamRefusal { error, message, code } = self.sample_data(&event)?;
                Err(error_in_stream(code, error, message))
            }
            other => Err(self.unexpected_answer(format!("an event named `{other}`"))),
        }
    }

    fn sample_data<T: DeserializeOwned>(&self, event: &Event) -> Result<T> {
        serde_json::from_str(&event.data).map_err(|error| self.unexpected_answer(error.to_string()))
    }
}
