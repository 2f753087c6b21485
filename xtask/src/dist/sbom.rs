//! The software bill of materials, as CycloneDX 1.5. It has no time and no random number: the same sources give the same text.

use serde_json::{Value, json};

use super::inventory::{Inventory, Part};

pub(crate) fn render(inventory: &Inventory) -> String {
    let root = inventory.root.purl();
    let program = json!({"type": "application", "bom-ref": root, "name": "ostler", "version": inventory.version, "purl": root,
        "licenses": licences(&inventory.root),
        "properties": [{"name": "ostler:commit", "value": inventory.commit}]});
    let uses = inventory.parts.iter().chain([&inventory.root]);
    let uses: Vec<_> = uses.map(|part| json!({"ref": part.purl(), "dependsOn": part.uses})).collect();
    let document = json!({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": program, "tools": {"components": [{"type": "application", "name": "cargo xtask dist"}]}},
        "components": inventory.parts.iter().map(component).collect::<Vec<_>>(),
        "dependencies": uses});
    format!("{document:#}\n")
}

fn component(part: &Part) -> Value {
    let mut component = json!({"type": "library", "bom-ref": part.purl(), "name": part.name, "version": part.version,
        "purl": part.purl(), "licenses": licences(part)});
    if let Some(checksum) = &part.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if !part.repository.is_empty() {
        component["externalReferences"] = json!([{"type": "vcs", "url": part.repository}]);
    }
    component
}

fn licences(part: &Part) -> Value {
    // Crates from before SPDX expressions separate their licences by a slash.
    let expression = part.licence.replace('/', " OR ");
    if expression.is_empty() { json!([]) } else { json!([{"expression": expression}]) }
}
