//! Templates whose last restore for the pool failed because they are damaged.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use skep_api::{ErrorCode, TemplateId, swarm::BASE_TEMPLATE, system::DamagedTemplate};

use crate::Error;

/// The damaged templates, with the reason. There are at most as many as templates in the pool.
#[derive(Debug, Default)]
pub(crate) struct TemplateDamage(Mutex<BTreeMap<TemplateId, DamagedTemplate>>);

impl TemplateDamage {
    /// Records the outcome of a restore. Failures for another reason change nothing.
    pub(crate) fn record<T>(&self, template: TemplateId, outcome: &Result<T, Error>) {
        match outcome {
            Ok(_) => {
                self.lock().remove(&template);
            }
            Err(error) if error.code() == ErrorCode::TemplateDamaged => {
                self.lock().insert(
                    template,
                    DamagedTemplate { template: name(template), message: error.to_string() },
                );
            }
            Err(_) => {}
        }
    }

    pub(crate) fn list(&self) -> Vec<DamagedTemplate> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TemplateId, DamagedTemplate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(template: TemplateId) -> String {
    if template == TemplateId::BASE { BASE_TEMPLATE.to_owned() } else { template.to_string() }
}

#[cfg(test)]
mod tests {
    use skep_api::Failure;

    use super::*;

    #[test]
    fn a_template_is_damaged_until_a_restore_succeeds() {
        let (damage, base) = (TemplateDamage::default(), TemplateId::BASE);
        let failed = |code| {
            let failure = Failure::new(code, "`base` is damaged (root.erofs)");
            Err::<(), _>(Error::Keeper(skep_keeper_protocol::Error::Refused(failure)))
        };
        damage.record(base, &failed(ErrorCode::NoCapacity));
        assert_eq!(damage.list(), []);
        damage.record(base, &failed(ErrorCode::TemplateDamaged));
        damage.record(base, &failed(ErrorCode::NoCapacity));
        damage.record(TemplateId::generate(), &Ok(()));
        let [one] = damage.list().try_into().unwrap();
        assert!(one.template == "base" && one.message.contains("root.erofs"), "{one:?}");
        damage.record(base, &Ok(()));
        assert_eq!(damage.list(), []);
    }
}
