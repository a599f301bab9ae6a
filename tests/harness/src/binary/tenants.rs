//! Accounts besides `default`, each with a key.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::{Answer, Skep, send};

/// An account and its admin key.
pub struct Tenant<'a> {
    pub skep: &'a Skep,
    pub id: String,
    pub key: String,
}

impl Skep {
    /// A new account with a key of role admin.
    pub async fn tenant(&self, name: &str) -> Tenant<'_> {
        let account = self.post("/api/accounts", &json!({"name": name})).await.ok(201);
        let request = json!({"name": "admin", "role": "admin", "account": account["id"]});
        let made = self.post("/api/keys", &request).await.ok(201);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Tenant { skep: self, id: text(&account["id"]), key: text(&made["key"]) }
    }
}

impl Tenant<'_> {
    /// A request with its key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.skep.bare(method, path).bearer_auth(&self.key)
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
    }

    /// Boots one VM and returns its record.
    pub async fn boot(&self) -> Value {
        self.post("/api/swarm/boot", &json!({})).await.ok(201)["vms"][0].clone()
    }

    /// Changes the account, as the server's administrator does.
    pub async fn change(&self, change: &Value) -> Value {
        let path = format!("/api/accounts/{}", self.id);
        send(self.skep.request(Method::PATCH, &path).json(change)).await.ok(200)
    }
}
