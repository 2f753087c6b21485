//! The mesh's keys, certificates and envelopes, held against known answers of a published client and against OpenSSL.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod certificates;
mod envelope;
mod ocsp;
mod openssl;
mod proofs;
mod published_client;
mod replay;
mod scene;
mod trust_list;
