//! Names, messages and mailboxes of the mesh.

mod identities;
mod limits;
mod messages;
mod queue;
