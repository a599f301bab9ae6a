//! A fake store of templates.

use async_trait::async_trait;
use jiff::Timestamp;
use skep_api::{
    AccountId, TemplateId,
    templates::{Template, TemplateSource, TemplateState},
};
use skep_store::{
    AccountDisk, CreateTemplate, DeleteTemplate, EnsureBaseTemplate, Error, IdempotentRequest, KnownTemplate,
    ListTemplates, RecordSnapshot, RecordTemplateState, Result, TemplatePage, TemplateStore,
};

use crate::fake_store::FakeStore;

/// A template that is ready.
pub(crate) fn template(account: AccountId, name: &str, memory_mb: u64) -> Template {
    Template {
        name: name.parse().unwrap(),
        id: TemplateId::generate(),
        source: TemplateSource::Setup,
        parent: Some("base".parse().unwrap()),
        state: TemplateState::Ready,
        progress: None,
        error: None,
        memory_mb,
        vcpus: 1,
        disk_mb: 2048,
        size_bytes: None,
        own_bytes: None,
        egress: None,
        public: false,
        description: None,
        account: Some(account),
        created_at: Timestamp::now(),
        last_used_at: None,
        children: 0,
        vms: 0,
    }
}

#[async_trait]
impl TemplateStore for FakeStore {
    async fn template(&self, account: AccountId, reference: &str) -> Result<Template> {
        let is_meant = |template: &&Template| {
            template.account == Some(account)
                && (template.name.as_str() == reference || template.id.to_string() == reference)
        };
        let found = self.templates.lock().unwrap().iter().find(is_meant).cloned();
        found.ok_or_else(|| Error::UnknownTemplate { template: reference.to_owned() })
    }

    async fn account_disk(&self, _: AccountId) -> Result<AccountDisk> {
        Ok(*self.disk.lock().unwrap())
    }

    async fn ensure_base_template(&self, _: EnsureBaseTemplate) -> Result<()> {
        unreachable!()
    }

    async fn stored_template_answer(
        &self,
        _: AccountId,
        _: IdempotentRequest,
        _: Timestamp,
    ) -> Result<Option<Template>> {
        unreachable!()
    }

    async fn create_template(&self, _: CreateTemplate) -> Result<Template> {
        unreachable!()
    }

    async fn list_templates(&self, _: ListTemplates) -> Result<TemplatePage> {
        unreachable!()
    }

    async fn delete_template(&self, _: DeleteTemplate) -> Result<Template> {
        unreachable!()
    }

    async fn record_template_state(&self, _: RecordTemplateState) -> Result<bool> {
        unreachable!()
    }

    async fn record_snapshot(&self, _: RecordSnapshot) -> Result<Template> {
        unreachable!()
    }

    async fn known_templates(&self) -> Result<Vec<KnownTemplate>> {
        unreachable!()
    }
}
