//! A server with TLS, whose certificate no authority of the system vouches for.

use std::path::Path;

use ostler_testkit::kube::KubeCluster;
use serde_json::json;

use super::{ClusterServer, PROGRAM, text};
use crate::fixtures::{
    process::{eventually, stdout_of},
    test_home::{Engine, TestHome, both_engines},
};

#[both_engines]
fn a_pod_reaches_a_server_whose_authority_is_in_the_configuration(engine: Engine) {
    let mut home = TestHome::on_disk(engine).without_runner();
    home.use_tls();
    let authority = home.path("web.crt");
    let settings = [("OSTLER_KUBERNETES__CA_FILE", authority.to_str().unwrap())];
    let setup = ClusterServer::launch_home(KubeCluster::start().unwrap(), home, Path::new(PROGRAM), &settings);
    let ostler = |args: &[&str]| {
        let mut command = setup.home.command(args);
        command.env("OSTLER_SERVER", setup.server().url()).env("OSTLER_CA_FILE", &authority);
        stdout_of(command.output().unwrap())
    };
    let said = ostler(&["run", "--profile", "scripted", "hello over TLS"]);
    assert!(said.contains("hello over TLS"), "{said}");
    let pod = eventually("the pod ends", || {
        let pods = setup.cluster.objects("pods");
        pods.into_iter().find(|pod| pod["status"]["phase"] == "Succeeded")
    });
    let environment = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| environment.iter().find(|variable| variable["name"] == name).unwrap()["value"].clone();
    assert_eq!(value("AGENTRUN_MANAGER_URL"), json!(setup.server().url()));
    // The pod has the authority from its Secret, not from this machine.
    assert!(!text(&value("OSTLER_CA_FILE")).contains(authority.to_str().unwrap()));
}
