//! The commands of the mesh.

mod messages;
mod pki;
