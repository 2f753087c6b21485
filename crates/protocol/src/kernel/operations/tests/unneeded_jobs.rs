//! Jobs of a cluster whose own command has ended before a runner came: they leave the other commands of their run alone.

use super::*;
use crate::limits::JOB_ATTEMPTS_MAX;

#[test]
fn a_job_of_a_cluster_whose_command_has_ended_before_a_runner_came_leaves_the_other_commands_alone() {
    for had_runner in [false, true] {
        let mut scene = Scene::new();
        let run = scene.run();
        let (other, own) = (scene.turn(run), scene.turn(run));
        scene.advance_ms(1);
        let job = scene.running_job(run, false);
        scene.desk.run_mut(run).jobs.get_mut(&job).unwrap().launcher = Launcher::Kubernetes;
        if had_runner {
            scene.claim(run, "runner");
            let release = scene.patch(run, true, false);
            scene.apply(run, release).unwrap();
        }
        scene.cancel(run, own);
        // A runner that has held the run may have taken up the other command.
        let phase = if had_runner { JobPhase::Pending } else { JobPhase::Succeeded };
        assert_eq!(scene.finish_job(run, job, JobEnd::Succeeded), phase, "{had_runner}");
        assert_eq!(scene.state(run, other), CommandState::Pending);
    }
}

#[test]
fn the_last_start_of_such_a_job_does_not_give_up_the_other_commands_however_it_ends() {
    for end in [JobEnd::Lost, JobEnd::Failed, JobEnd::Overdue] {
        let mut scene = Scene::new();
        let run = scene.run();
        let (other, own) = (scene.turn(run), scene.turn(run));
        scene.advance_ms(1);
        let job = scene.running_job(run, false);
        let row = scene.desk.run_mut(run).jobs.get_mut(&job).unwrap();
        row.launcher = Launcher::Kubernetes;
        row.attempt = JOB_ATTEMPTS_MAX;
        scene.cancel(run, own);
        assert_eq!(scene.finish_job(run, job, end), JobPhase::Failed, "{end:?}");
        assert_eq!(scene.state(run, other), CommandState::Pending, "{end:?}");
    }
}
