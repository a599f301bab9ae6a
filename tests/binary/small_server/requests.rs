//! A request, and its answer.

use std::{collections::BTreeSet, sync::Arc};

use reqwest::{
    Method, RequestBuilder,
    header::{ACCEPT, CONTENT_TYPE},
};
use serde_json::Value;

use crate::harness::Skep;

/// Number of concurrent requests.
const AT_ONCE: usize = 8;
/// In a path, it is replaced by the number of the request among the concurrent ones.
const NUMBER: &str = "NUMBER";

const JSON: &str = "application/json";

/// A request.
pub(super) struct Request {
    pub(super) name: &'static str,
    method: Method,
    path: String,
    body: Option<Arc<[u8]>>,
    accept: &'static str,
    /// Statuses of good answers.
    pub(super) expected: BTreeSet<u16>,
    /// How many are sent at once.
    pub(super) times: usize,
}

/// The result of a request.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) bytes: u64,
}

impl Request {
    pub(super) fn get(name: &'static str, path: impl Into<String>) -> Self {
        let expected = BTreeSet::from([200]);
        Self {
            name,
            method: Method::GET,
            path: path.into(),
            body: None,
            accept: JSON,
            expected,
            times: AT_ONCE,
        }
    }

    pub(super) fn post(name: &'static str, path: impl Into<String>, body: &Value) -> Self {
        let body = Some(serde_json::to_vec(body).unwrap().into());
        Self { method: Method::POST, body, expected: BTreeSet::from([200, 201]), ..Self::get(name, path) }
    }

    pub(super) fn with(self, body: String) -> Self {
        Self { body: Some(body.into_bytes().into()), ..self }
    }

    /// For bytes instead of JSON.
    pub(super) fn raw(self) -> Self {
        Self { accept: "application/octet-stream", ..self }
    }

    pub(super) fn by(self, method: Method) -> Self {
        Self { method, ..self }
    }

    /// Accepts these refusals too.
    pub(super) fn or(mut self, refusals: &[u16]) -> Self {
        self.expected.extend(refusals);
        self
    }

    pub(super) fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    pub(super) fn request(&self, skep: &Skep, number: usize) -> RequestBuilder {
        let path = self.path.replace(NUMBER, &number.to_string());
        let request = skep.request(self.method.clone(), &path).header(ACCEPT, self.accept);
        match &self.body {
            Some(body) => request.header(CONTENT_TYPE, JSON).body(body.to_vec()),
            None => request,
        }
    }

    /// Sends the request, and reads the answer in pieces without keeping it in memory.
    pub(super) async fn send(&self, skep: &Skep, number: usize) -> Answered {
        let failed = |error: reqwest::Error| -> ! { panic!("{}: {error:?}", self.name) };
        let mut response = self.request(skep, number).send().await.unwrap_or_else(|error| failed(error));
        let mut bytes = 0;
        while let Some(piece) = response.chunk().await.unwrap_or_else(|error| failed(error)) {
            bytes += piece.len() as u64;
        }
        Answered { status: response.status().as_u16(), bytes }
    }
}
