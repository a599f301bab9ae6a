//! Divides the pool between templates, in proportion to their recent boots.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use skep_api::TemplateId;

/// After this time the weight of a boot is halved.
const HALF_LIFE: Duration = Duration::from_secs(300);

/// Recent boots by template.
#[derive(Debug, Default)]
pub(crate) struct Demand(BTreeMap<TemplateId, DecayingWeight>);

#[derive(Debug, Clone, Copy)]
struct DecayingWeight {
    weight: f64,
    at: Instant,
}

impl DecayingWeight {
    fn weight(&self, now: Instant) -> f64 {
        let halvings = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.weight * (-halvings).exp2()
    }
}

impl Demand {
    pub(crate) fn record_boots(&mut self, template: TemplateId, vms: u32, now: Instant) {
        let booted = self.0.entry(template).or_insert(DecayingWeight { weight: 0.0, at: now });
        *booted = DecayingWeight { weight: booted.weight(now) + f64::from(vms), at: now };
    }

    pub(crate) fn forget(&mut self, template: TemplateId) {
        self.0.remove(&template);
    }

    /// The share of each template in a pool of `size` VMs. `first` has the weight of one boot even without boots.
    pub(crate) fn shares(&self, size: u32, first: TemplateId, now: Instant) -> BTreeMap<TemplateId, u32> {
        let mut weights: BTreeMap<TemplateId, f64> =
            self.0.iter().map(|(template, booted)| (*template, booted.weight(now))).collect();
        // The weight of one boot at this moment.
        *weights.entry(first).or_default() += 1.0;
        let total: f64 = weights.values().sum();
        let mut left = size;
        let mut shares: BTreeMap<TemplateId, u32> = weights
            .iter()
            .map(|(template, weight)| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to size")]
                let share = ((f64::from(size) * weight / total).floor() as u32).min(left);
                left -= share;
                (*template, share)
            })
            .collect();
        // The remainder of rounding goes to the templates with the greatest weights.
        let mut ranked: Vec<(TemplateId, f64)> = weights.into_iter().collect();
        ranked.sort_by(|one, other| other.1.total_cmp(&one.1));
        for (template, _) in ranked.iter().cycle().take(if ranked.is_empty() { 0 } else { left as usize }) {
            *shares.entry(*template).or_default() += 1;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: TemplateId = TemplateId::BASE;

    #[test]
    fn the_whole_pool_is_for_the_first_template_until_another_is_booted() {
        let (now, mine) = (Instant::now(), TemplateId::generate());
        let mut demand = Demand::default();
        assert_eq!(demand.shares(8, BASE, now), BTreeMap::from([(BASE, 8)]));
        demand.record_boots(mine, 7, now);
        let shares = demand.shares(8, BASE, now);
        assert_eq!((shares[&BASE], shares[&mine]), (1, 7));
        // After a long time the boots have no weight any more.
        let later = now + HALF_LIFE * 20;
        assert_eq!(demand.shares(8, BASE, later)[&BASE], 8);
        demand.forget(mine);
        assert_eq!(demand.shares(8, BASE, now), BTreeMap::from([(BASE, 8)]));
    }

    proptest! {
        #[test]
        fn shares_sum_up_to_the_size(
            size in 0_u32..100,
            asked in prop::collection::vec((0_usize..3, 1_u32..50, 0_u64..2000), 0..12),
        ) {
            let begin = Instant::now();
            let templates = [(); 3].map(|()| TemplateId::generate());
            let mut demand = Demand::default();
            for (template, vms, second) in &asked {
                demand.record_boots(templates[*template], *vms, begin + Duration::from_secs(*second));
            }
            let shares = demand.shares(size, BASE, begin + Duration::from_secs(2000));
            prop_assert_eq!(shares.values().sum::<u32>(), size);
        }
    }
}
