//! Requests of `/api/templates`. A template is given by its name or id.

use skep_api::templates::{CreateTemplate, DeletedTemplate, Template, TemplateList};

use crate::{Answered, Client, Result, client::encode_segment};

impl Client {
    /// `GET /api/templates`: a page of at most `limit` templates. `cursor` is the `next_cursor` of the previous page.
    ///
    /// # Errors
    /// `invalid_value`, and those of every request: see [`crate::Error`].
    pub async fn templates(&self, limit: u32, cursor: Option<&str>) -> Result<Answered<TemplateList>> {
        let mut path = format!("api/templates?limit={limit}");
        if let Some(cursor) = cursor {
            path = format!("{path}&cursor={}", encode_segment(cursor));
        }
        self.get(&path).await
    }

    /// `GET /api/templates/{name}`: the record of a template.
    ///
    /// # Errors
    /// `unknown_template`, and those of every request.
    pub async fn template(&self, template: &str) -> Result<Answered<Template>> {
        self.get(&format!("api/templates/{}", encode_segment(template))).await
    }

    /// `POST /api/templates`: begins to build a template.
    ///
    /// # Errors
    /// `invalid_value`, `unknown_template`, `name_taken`, `template_not_ready`, `quota_exceeded`, `swarm_unavailable`,
    /// and those of every request.
    pub async fn create_template(&self, request: &CreateTemplate) -> Result<Answered<Template>> {
        self.post("api/templates", request).await
    }

    /// `DELETE /api/templates/{name}`: deletes a template.
    ///
    /// # Errors
    /// `unknown_template`, `template_in_use`, `template_protected`, and those of every request.
    pub async fn delete_template(&self, template: &str) -> Result<Answered<DeletedTemplate>> {
        self.delete(&format!("api/templates/{}", encode_segment(template))).await
    }
}
