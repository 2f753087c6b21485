//! The reply of each operation, by its type.

use super::*;

/// An operation that can be submitted, with the type of its reply.
pub trait Operation {
    type Reply;

    fn into_op(self) -> Op;

    /// `None` if this is the reply of another operation.
    fn read(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! operations {
    ($($type:ident as $op:expr => $pattern:pat => $reply:ty: $value:expr;)*) => {
        $(impl Operation for $type {
            type Reply = $reply;

            fn into_op(self) -> Op {
                $op(self.into())
            }

            fn read(reply: Reply) -> Option<$reply> {
                match reply {
                    $pattern => Some($value),
                    _ => None,
                }
            }
        })*
    };
}

operations! {
    CreateSessionOp as Op::CreateSession => Reply::Session(session) => Session: *session;
    ChangeSessionOp as Op::ChangeSession => Reply::Session(session) => Session: *session;
    CreateRunOp as Op::CreateRun => Reply::Run(created) => CreatedRun: *created;
    CreateCommandOp as Op::CreateCommand => Reply::Command(command, is_new) => (Command, bool): (*command, is_new);
    CreateJobOp as Op::CreateJob => Reply::Job(job, is_new) => (RunnerJob, bool): (*job, is_new);
    FinishJobOp as Op::FinishJob => Reply::Done => (): ();
    ClaimOp as Op::Claim => Reply::Claimed(claimed) => Claimed: *claimed;
    PatchLeaseOp as Op::PatchLease => Reply::Lease(state) => LeaseState: state;
    DismissOp as Op::Dismiss => Reply::Done => (): ();
    AckOp as Op::Ack => Reply::Command(command, _) => Command: *command;
    AppendOp as Op::Append => Reply::Appended(appended) => Appended: appended;
    CancelRunOp as Op::CancelRun => Reply::CancelledRun(run) => Run: *run;
    CancelCommandOp as Op::CancelCommand => Reply::Command(command, _) => Command: *command;
    AnswerPermissionOp as Op::AnswerPermission => Reply::Permission(request) => PermissionRequest: *request;
    SubmitOp as Op::Submit => Reply::Submitted(submitted) => Submitted: *submitted;
    SweepOp as Op::Sweep => Reply::Done => (): ();
}
