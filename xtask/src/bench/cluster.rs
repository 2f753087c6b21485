//! What the group `kubernetes` needs: a server that was built with its launcher, and an API server.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value};
use tempfile::NamedTempFile;

use super::equipment::{PROGRAMS, build_with, figures_dir, release_dir};
use crate::kubernetes::ControlPlane;
use crate::process::{cargo, run};

const GROUP: &str = "kubernetes";
/// The other groups of the load generator, of which the filter picks those whose name contains it.
const OTHER_GROUPS: [&str; 22] = [
    "append",
    "run",
    "result",
    "follow",
    "replay",
    "idle",
    "instructions",
    "sessions",
    "lists",
    "replicas",
    "start",
    "manifest",
    "consent",
    "refuse",
    "mesh",
    "codex",
    "agui",
    "daemon",
    "tools",
    "growth",
    "soak",
    "scale",
];
/// Variables of the load generator. They are not arguments, because generators of earlier revisions do not know them.
const KUBECONFIG_VARIABLE: &str = "OSTLER_BENCH_KUBECONFIG";
const OSTLER_VARIABLE: &str = "OSTLER_BENCH_KUBERNETES_OSTLER";
const REASON_VARIABLE: &str = "OSTLER_BENCH_KUBERNETES_REASON";
const FEATURE: &str = "ostler-cli/kubernetes";
const NO_CLUSTER: &str = "no cluster is named; set OSTLER_KUBE_BIN or OSTLER_TEST_KUBECONFIG";
const LATER: &str = "measured after the other groups, with a table of its own";

/// When the group is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ClusterTurn {
    /// It was not asked for.
    Never,
    /// No cluster is named: the load generator reports that.
    NotPossible,
    /// At once, because the filter picks no other group.
    Alone,
    /// After all other groups: a control plane beside them would change their figures.
    AfterOthers,
}

impl ClusterTurn {
    pub(crate) fn of(filter: Option<&str>) -> Self {
        Self::decide(filter, ControlPlane::is_named())
    }

    fn decide(filter: Option<&str>, is_named: bool) -> Self {
        match filter {
            Some(filter) if !GROUP.contains(filter) => Self::Never,
            // A filter of a few letters, which picks this group by chance.
            Some(filter) if OTHER_GROUPS.iter().any(|group| group.contains(filter)) => Self::Never,
            _ if !is_named => Self::NotPossible,
            Some(_) => Self::Alone,
            None => Self::AfterOthers,
        }
    }

    /// Tells a load generator without a cluster why it has none.
    pub(crate) fn explain(self, generator: &mut Command) {
        let reason = match self {
            Self::Never | Self::Alone => return,
            Self::NotPossible => NO_CLUSTER,
            Self::AfterOthers => LATER,
        };
        generator.env(REASON_VARIABLE, reason);
    }
}

/// Builds the server with the launcher. A copy, because the other groups are measured with the server that has the default features:
/// build that one afterwards.
pub(crate) fn build_server() -> Result<PathBuf, String> {
    build_with(&mut cargo()?, &["--features", FEATURE])?;
    let directory = figures_dir()?.join(GROUP);
    let copy = directory.join(PROGRAMS[0]);
    let built = release_dir()?.join(PROGRAMS[0]);
    let copied = fs::create_dir_all(&directory).and_then(|()| fs::copy(built, &copy));
    copied.map_err(|e| format!("cannot copy the server to {}: {e}", copy.display()))?;
    Ok(copy)
}

/// A cluster, for as long as it is measured.
pub(crate) struct BenchCluster {
    server: PathBuf,
    /// Contains credentials. Only its owner can read it.
    kubeconfig: NamedTempFile,
    /// Stopped when this is dropped, if it was started for this.
    _plane: ControlPlane,
}

impl BenchCluster {
    /// Finds or starts the API server that the environment names, for a server of [`build_server`].
    pub(crate) fn find_or_start(server: PathBuf) -> Result<Self, String> {
        eprintln!("==> Kubernetes API server");
        let plane = ControlPlane::find_or_start()?;
        let config = plane.flat_kubeconfig()?;
        let written = NamedTempFile::new().and_then(|mut file| file.write_all(config.as_bytes()).map(|()| file));
        let kubeconfig = written.map_err(|e| format!("cannot write a kubeconfig: {e}"))?;
        Ok(Self { server, kubeconfig, _plane: plane })
    }

    pub(crate) fn set_environment(&self, generator: &mut Command) {
        generator.env(KUBECONFIG_VARIABLE, self.kubeconfig.path()).env(OSTLER_VARIABLE, &self.server);
    }

    /// Measures the group alone. Its figures are added to those of the other groups in `latest.json`.
    pub(crate) fn measure_alone(&self, mut generator: Command) -> Result<(), String> {
        let directory = figures_dir()?;
        let (own, latest) = (directory.join("kubernetes.json"), directory.join("latest.json"));
        self.set_environment(&mut generator);
        run(generator.arg("--out").arg(&own).arg(GROUP))?;
        let mut figures = read(&latest)?;
        let prefix = format!("{GROUP}.");
        figures.extend(read(&own)?.into_iter().filter(|(name, _)| name.starts_with(&prefix)));
        let text = format!("{:#}\n", Value::Object(figures));
        fs::write(&latest, text).map_err(|e| format!("cannot write {}: {e}", latest.display()))
    }
}

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{} has no figures: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::workspace_root;

    #[test]
    fn the_group_is_measured_alone_unless_it_is_named() {
        for (filter, is_named, turn) in [
            (Some("append"), true, ClusterTurn::Never),
            (Some("kube"), true, ClusterTurn::Alone),
            (Some("s"), true, ClusterTurn::Never),
            (Some("e"), true, ClusterTurn::Never),
            (Some("kubernetes"), false, ClusterTurn::NotPossible),
            (None, true, ClusterTurn::AfterOthers),
            (None, false, ClusterTurn::NotPossible),
        ] {
            assert_eq!(ClusterTurn::decide(filter, is_named), turn, "{filter:?}");
        }
    }

    #[test]
    fn the_other_groups_are_those_of_the_load_generator() {
        let source = fs::read_to_string(workspace_root().unwrap().join("bench/src/main.rs")).unwrap();
        let (_, rest) = source.split_once("whose name contains this: ").unwrap();
        let groups: Vec<_> = rest.split('"').next().unwrap().split(',').map(str::trim).collect();
        assert_eq!(groups, [&OTHER_GROUPS[..], &[GROUP]].concat());
    }
}
