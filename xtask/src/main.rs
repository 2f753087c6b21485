//! The project's own commands: start the server, run everything CI runs, borrow a private Postgres. It finds or
//! installs the tools it needs, and keeps no state in the checkout besides cargo's target directory.

#![expect(clippy::print_stdout, reason = "tables and variables are the output of these commands")]

mod bench;
mod chromium;
mod coverage;
mod debian;
mod dist;
mod flaky;
mod fuzz;
mod image;
mod installed;
mod kubernetes;
mod npm;
mod openssl;
mod postgres;
mod process;
mod proxies;
mod python;
mod subjects;
mod test;
mod tools;
mod torture;
mod up;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>

  up [-- ARGS]              build the release binary and serve on the embedded store; ARGS go to `ostler serve`
  test [--fast] [-- ARGS]   everything CI runs; --fast skips the dependency checks, ARGS go to nextest
  test --kubernetes [-- ARGS]
                            what needs a Kubernetes API server: OSTLER_TEST_KUBECONFIG names a cluster, or
                            OSTLER_KUBE_BIN a folder with the scripts that start and stop one
  bench [--quick] [FILTER]  measure both engines and write target/bench/latest.json; FILTER picks figures by name.
                            The group `kubernetes` needs the same variables as `test --kubernetes`
  bench --against REV [--rounds N] [FILTER]
                            compare the working tree with another revision in alternating rounds
  bench --peers [--quick] [--write] [FILTER]
                            compare it with what users would pick instead; --write updates docs/benchmarks.md
  coverage [-p PACKAGE] [ARGS]
                            line coverage of the tests, by crate; ARGS go to nextest
  dist [--profile NAME] [--binary FILE] [--out DIR]
                            a release archive with its SBOM, licences and checksums, in target/dist
  install                   try `cargo install --path crates/cli`, without optimisation and in a scratch directory
  image [--without-registry --binary FILE]
                            check deploy/Dockerfile; build and start the image with buildah, podman or docker if there is one.
                            --without-registry makes the base image with debootstrap and installs FILE, an `ostler`
                            that was built before; it needs buildah, debootstrap and root
  fuzz TARGET [--seconds N] [--from NUMBER]
                            try what strangers might send: frame, envelope, agent-md, certificate,
                            path, glob
  torture [--minutes N] [--seed S] [--engine sqlite|postgres|both] [--probe NAME] [--rounds N] [--list]
                            break servers, Postgres, disks and clocks under load; check all that was acknowledged
  kubernetes                render the overlays of deploy/kubernetes again
  agents                    find or install what tests drive: agents, clients, judges; prints the variables that name it
  postgres -- CMD [ARGS]    run CMD with OSTLER_TEST_POSTGRES_URL pointing at a private cluster
";

fn main() -> ExitCode {
    if let Err(message) = coverage::wrap_compiler() {
        eprintln!("error: {message}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::FAILURE;
    };
    let outcome = process::listen_for_signals().and_then(|()| match command.as_str() {
        "up" => up::up(after_separator(rest)),
        "test" => test::test(rest),
        "bench" => bench::bench(rest),
        "coverage" => coverage::coverage(rest),
        "dist" => dist::dist(rest),
        "install" => dist::install(rest),
        "image" => image::image(rest),
        "fuzz" => fuzz::fuzz(rest),
        "torture" => torture::torture(rest),
        "kubernetes" => kubernetes::render(rest),
        "agents" => test::print_variables(),
        "postgres" => postgres::run_with_cluster(after_separator(rest)),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("there is no command `{other}`\n\n{USAGE}")),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn after_separator(arguments: &[String]) -> &[String] {
    match arguments.split_first() {
        Some((first, rest)) if first == "--" => rest,
        _ => arguments,
    }
}
