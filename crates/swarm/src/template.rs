//! Templates as boots see them.

use std::sync::Arc;

use skep_api::{
    AccountId, ErrorCode, Failure, TemplateId, VmId,
    egress::EgressPolicy,
    swarm::BASE_TEMPLATE,
    templates::{Template, TemplateSource, TemplateState},
};
use skep_store::{TemplateStore, VmBooted};

use crate::Error;

/// A template from which VMs are booted.
#[derive(Debug)]
pub(crate) struct BootTemplate {
    pub(crate) id: TemplateId,
    pub(crate) name: String,
    /// The only account that sees it. `None` if all do.
    pub(crate) account: Option<AccountId>,
    /// Memory of a guest, in MiB.
    pub(crate) memory_mb: u64,
    /// The egress policy of the VM whose state VMs begin with, if that is known.
    pub(crate) egress: Option<EgressPolicy>,
    pub(crate) source: BootState,
}

/// The state that the VMs of a template begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BootState {
    /// The state of a guest that has run nothing yet.
    Baked,
    /// The state of a VM at its snapshot. VMs of it are not parked: they have programs that must not run before the VM has its
    /// owner.
    Snapshot,
    /// The state of a guest that was booted from the disk of a snapshot. The keeper has it as a template with this id.
    Disk { booted: TemplateId },
    /// The state of a VM that is being forked, in the keeper's capture with this id.
    Fork { parent: VmId, capture: TemplateId },
}

impl BootTemplate {
    pub(crate) fn base(memory_mb: u64) -> Self {
        let name = BASE_TEMPLATE.to_owned();
        Self { id: TemplateId::BASE, name, account: None, memory_mb, egress: None, source: BootState::Baked }
    }

    /// Copies of a VM.
    pub(crate) fn fork(parent: &VmBooted, egress: EgressPolicy, capture: TemplateId) -> Self {
        Self {
            id: parent.template_id,
            name: parent.template.clone(),
            account: Some(parent.account),
            memory_mb: parent.memory_mb,
            egress: Some(egress),
            source: BootState::Fork { parent: parent.id, capture },
        }
    }

    /// What the keeper launches VMs from.
    pub(crate) fn launched_from(&self) -> TemplateId {
        match self.source {
            BootState::Baked | BootState::Snapshot => self.id,
            BootState::Disk { booted } => booted,
            BootState::Fork { capture, .. } => capture,
        }
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.source == BootState::Baked
    }

    pub(crate) fn is_visible_to(&self, account: AccountId) -> bool {
        self.account.is_none_or(|owner| owner == account)
    }
}

impl From<Template> for BootTemplate {
    fn from(template: Template) -> Self {
        Self {
            id: template.id,
            name: template.name.into(),
            account: template.account.filter(|_| !template.public),
            memory_mb: template.memory_mb,
            egress: template.egress,
            source: match template.source {
                TemplateSource::Vm => BootState::Snapshot,
                _ => BootState::Baked,
            },
        }
    }
}

/// Finds the template of a boot.
pub(crate) struct Templates {
    pub(crate) store: Arc<dyn TemplateStore>,
    pub(crate) base: Arc<BootTemplate>,
}

impl Templates {
    /// The template with this name or id that VMs of the account can be restored from, if it is a snapshot with its memory or
    /// without.
    ///
    /// # Errors
    /// `unknown_template`, `template_not_ready`, `template_damaged`.
    pub(crate) async fn find(
        &self,
        account: AccountId,
        reference: &str,
        memory: bool,
    ) -> Result<Arc<BootTemplate>, Error> {
        // The keeper has the state of `base`: it is baked again while the server runs, and a boot is not to wait for
        // the record.
        if reference == BASE_TEMPLATE || reference.parse() == Ok(TemplateId::BASE) {
            return Ok(Arc::clone(&self.base));
        }
        let template = self.store.template(account, reference).await?;
        if !memory && template.source == TemplateSource::Vm {
            require_disk(&template)?;
            let source = BootState::Disk { booted: TemplateId::generate() };
            return Ok(Arc::new(BootTemplate { source, ..template.into() }));
        }
        require_ready(&template)?;
        Ok(Arc::new(template.into()))
    }
}

/// Checks that a snapshot has been stored, so that a guest can be booted from its disk. Its memory may be outdated or damaged.
fn require_disk(template: &Template) -> Result<(), Failure> {
    match template.state {
        TemplateState::Outdated | TemplateState::Damaged => Ok(()),
        TemplateState::Ready | TemplateState::Building | TemplateState::Failed => require_ready(template),
    }
}

/// Checks that VMs can be restored from a template, and templates be made from it.
///
/// # Errors
/// `template_not_ready`, `template_damaged`.
pub fn require_ready(template: &Template) -> Result<(), Failure> {
    let Template { name, state, source, .. } = template;
    let reason = template.error.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let way_out = if *source == TemplateSource::Vm {
        ": its memory cannot be used; a boot without it (`\"memory\": false`) starts VMs from its disk alone, with its files \
         and without its programs"
    } else {
        " and is being built again; try again in a minute"
    };
    let (code, message) = match state {
        TemplateState::Ready => return Ok(()),
        TemplateState::Building => (
            ErrorCode::TemplateNotReady,
            format!("the template `{name}` is being built; try again when it is ready"),
        ),
        TemplateState::Failed => (
            ErrorCode::TemplateNotReady,
            format!("the template `{name}` could not be built{reason}; delete it and create it again"),
        ),
        TemplateState::Outdated => {
            (ErrorCode::TemplateNotReady, format!("the template `{name}` is outdated{reason}{way_out}"))
        }
        TemplateState::Damaged => {
            (ErrorCode::TemplateDamaged, format!("the template `{name}` is damaged{reason}{way_out}"))
        }
    };
    Err(Failure::new(code, message))
}
