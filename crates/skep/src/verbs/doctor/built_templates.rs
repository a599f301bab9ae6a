//! Checks the templates that were built from other ones: their checksums, and whether they fit this machine.

use std::{collections::BTreeMap, path::PathBuf};

use skep_api::TemplateId;
use skep_image::Bakery;
use skep_template::shelf::Footprint;

use super::Finding;
use crate::{
    output,
    settings::Settings,
    templates::{Recipe, built_templates, shelf_of},
};

const CHECK: &str = "template";
const BUILD: &str = "leave it to the server, which builds it again";

/// `base`: the folder of the template `base`, if that can be used.
pub(super) fn findings(settings: &Settings, bakery: &Bakery, base: Option<PathBuf>) -> Vec<Finding> {
    let shelf = shelf_of(&settings.data_dir);
    let recipes = match built_templates(&shelf) {
        Ok(recipes) => recipes,
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", shelf.display());
            return vec![Finding::missing(CHECK, detail, "see its owner and mode")];
        }
    };
    let mut usable: BTreeMap<TemplateId, PathBuf> =
        base.map(|dir| (TemplateId::BASE, dir)).into_iter().collect();
    let mut findings = Vec::new();
    for (id, recipe) in recipes {
        let found = usable.get(&recipe.parent).cloned().map(|parent| {
            let bakery = recipe.bakery(bakery, &shelf, id, parent);
            verify(id, &recipe, &bakery)
        });
        match found {
            Some(Ok((dir, finding))) => {
                usable.insert(id, dir);
                findings.push(finding);
            }
            Some(Err(finding)) => findings.push(finding),
            None => {
                let detail = format!("{id}: its parent {} cannot be used now", recipe.parent);
                findings.push(Finding::warning(CHECK, detail, BUILD));
            }
        }
    }
    findings
}

/// Returns the folder of a template that can be used, and the finding. `Err`: the finding about one that cannot.
fn verify(id: TemplateId, recipe: &Recipe, bakery: &Bakery) -> Result<(PathBuf, Finding), Finding> {
    let size = recipe.size;
    let named =
        format!("{id} ({} MiB, {} processors, {} MiB of disk)", size.memory_mb, size.vcpus, size.disk_mb);
    let unusable = |reason: String| Finding::warning(CHECK, format!("{named}: {reason}"), BUILD);
    let found = bakery.find().map_err(|error| unusable(output::one_line(&error.into())))?;
    let Some(dir) = found else {
        let difference = bakery.difference().ok().flatten();
        return Err(unusable(
            difference.map_or("not built yet".to_owned(), |difference| format!("built {difference}")),
        ));
    };
    let own_mb = Footprint::of(&dir).map_or(0, |footprint| footprint.own >> 20);
    let finding = Finding::ok(CHECK, format!("{named}: built, {own_mb} MiB of its own"));
    Ok((dir, finding))
}
