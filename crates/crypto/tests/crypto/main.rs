//! The mesh's keys, certificates and envelopes, tested against test vectors of a published client and against OpenSSL.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod certificates;
mod envelope;
mod fixture;
mod ocsp;
mod openssl;
mod proofs;
mod published_client;
mod replay;
mod trust_list;
