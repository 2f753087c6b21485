//! The mesh's keys, certificates and envelopes, held against known answers of a published client and against OpenSSL.

mod certificates;
mod envelope;
mod openssl;
mod proofs;
mod replay;
mod scene;
