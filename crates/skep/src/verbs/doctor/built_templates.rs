//! Checks the templates that were built from other ones: their checksums, and whether they fit this machine.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use skep_api::TemplateId;
use skep_image::TemplateBuilder;
use skep_store::VmOnDisk;
use skep_template::shelf::Footprint;

use super::Finding;
use crate::{
    output,
    privileges::as_owner_of,
    settings::Settings,
    templates::{Kind, Recipe, built_templates, shelf_of, snapshot_dir},
};

const CHECK: &str = "template";
const BUILD: &str = "leave it to the server, which builds it again";
const START_FROM_DISK: &str =
    "`skep resume --without-memory` or `skep boot --without-memory` starts from its disk alone";

/// `base`: the folder of the template `base`, if that can be used.
pub(super) fn findings(
    settings: &Settings,
    template_builder: &TemplateBuilder,
    base: Option<PathBuf>,
) -> Vec<Finding> {
    let shelf = shelf_of(&settings.data_dir);
    let recipes = match built_templates(&shelf) {
        Ok(recipes) => recipes,
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", shelf.display());
            return vec![Finding::missing(CHECK, detail, "see its owner and mode")];
        }
    };
    let vms = vms_on_disk(settings);
    let mut usable: BTreeMap<TemplateId, PathBuf> =
        base.map(|dir| (TemplateId::BASE, dir)).into_iter().collect();
    let mut findings = Vec::new();
    for (id, recipe) in recipes {
        let found = match recipe.kind {
            Kind::Build => usable.get(&recipe.parent).cloned().map(|parent| {
                let template_builder = recipe.template_builder(template_builder, &shelf, id, parent, None);
                verify(id, &recipe, &template_builder, &shelf)
            }),
            Kind::Snapshot | Kind::Pause => {
                let vm = vms.iter().find(|vm| vm.snapshot == id);
                Some(verify_snapshot(id, &recipe, vm, template_builder, &shelf))
            }
            // Only the VMs that were started from it need it.
            Kind::Disk => continue,
        };
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

fn named(id: TemplateId, recipe: &Recipe) -> String {
    let size = recipe.size;
    format!("{id} ({} MiB, {} processors, {} MiB of disk)", size.memory_mb, size.vcpus, size.disk_mb)
}

/// The VMs that are on disk. None if the store cannot be read, which is a finding of another check.
fn vms_on_disk(settings: &Settings) -> Vec<VmOnDisk> {
    let store = settings.store();
    as_owner_of(&settings.server_dir(), || Ok(skep_store::sqlite::vms_on_disk(&store)?)).unwrap_or_default()
}

/// `vm`: the VM that is on disk in the snapshot.
fn named_snapshot(id: TemplateId, recipe: &Recipe, vm: Option<&VmOnDisk>) -> String {
    let named = named(id, recipe);
    match vm {
        Some(VmOnDisk { vm, name: Some(name), .. }) => format!("{named}, of the VM {vm} (`{name}`) on disk"),
        Some(VmOnDisk { vm, .. }) => format!("{named}, of the VM {vm} on disk"),
        None => format!("{named}, of a VM"),
    }
}

/// The space that only the files of this template occupy, in MiB.
fn own_mb(dir: &Path, recipe: &Recipe, template_builder: &TemplateBuilder, shelf: &Path) -> u64 {
    let shared = recipe.shared_files(shelf, &template_builder.image_dir);
    Footprint::of(dir, shared).map_or(0, |footprint| footprint.own >> 20)
}

/// Like [`verify`], for a snapshot of a VM, which cannot be built again.
fn verify_snapshot(
    id: TemplateId,
    recipe: &Recipe,
    vm: Option<&VmOnDisk>,
    template_builder: &TemplateBuilder,
    shelf: &Path,
) -> Result<(PathBuf, Finding), Finding> {
    let named = named_snapshot(id, recipe, vm);
    let unusable = |reason: String| Finding::warning(CHECK, format!("{named}: {reason}"), START_FROM_DISK);
    let Some(dir) = snapshot_dir(shelf, id) else {
        return Err(Finding::warning(
            CHECK,
            format!("{named}: not complete"),
            "start the server, which removes it",
        ));
    };
    let failed = |error: skep_image::Error| unusable(output::one_line(&error.into()));
    if let Some(difference) = template_builder.difference_of_snapshot(&dir).map_err(failed)? {
        return Err(unusable(format!("booted {difference}")));
    }
    skep_template::verify(&dir).map_err(|error| failed(error.into()))?;
    let own_mb = own_mb(&dir, recipe, template_builder, shelf);
    let finding = Finding::ok(CHECK, format!("{named}: stored, {own_mb} MiB of its own"));
    Ok((dir, finding))
}

/// Returns the folder of a template that can be used, and the finding. `Err`: the finding about one that cannot.
fn verify(
    id: TemplateId,
    recipe: &Recipe,
    template_builder: &TemplateBuilder,
    shelf: &Path,
) -> Result<(PathBuf, Finding), Finding> {
    let named = named(id, recipe);
    let unusable = |reason: String| Finding::warning(CHECK, format!("{named}: {reason}"), BUILD);
    let found = template_builder.find().map_err(|error| unusable(output::one_line(&error.into())))?;
    let Some(dir) = found else {
        let difference = template_builder.difference().ok().flatten();
        return Err(unusable(
            difference.map_or("not built yet".to_owned(), |difference| format!("built {difference}")),
        ));
    };
    let own_mb = own_mb(&dir, recipe, template_builder, shelf);
    let finding = Finding::ok(CHECK, format!("{named}: built, {own_mb} MiB of its own"));
    Ok((dir, finding))
}

#[cfg(test)]
mod tests {
    use skep_api::{VmId, templates::GuestSize};

    use super::*;

    #[test]
    fn a_snapshot_names_the_vm_that_is_on_disk_in_it() {
        let size = GuestSize { memory_mb: 256, vcpus: 1, disk_mb: 2048 };
        let recipe = Recipe { parent: TemplateId::BASE, size, kind: Kind::Pause };
        let (snapshot, id) = (TemplateId::generate(), VmId::generate());
        let shown = |name: Option<&str>| {
            let name = name.map(|name| name.parse().unwrap());
            named_snapshot(snapshot, &recipe, Some(&VmOnDisk { vm: id, name, snapshot }))
        };
        assert!(shown(Some("sleeper")).ends_with(&format!("of the VM {id} (`sleeper`) on disk")));
        assert!(shown(None).ends_with(&format!("of the VM {id} on disk")));
        assert!(named_snapshot(snapshot, &recipe, None).ends_with("of a VM"));
    }
}
