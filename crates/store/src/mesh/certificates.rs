//! Conditions on the log of certificates.

/// Whether the certificate with this serial was made, and nothing of its name's was revoked after it.
pub(crate) fn is_good(serial: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM mesh_certificates AS c WHERE c.serial = {serial} AND c.certificate IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM mesh_certificates AS r WHERE r.aid = c.aid AND r.number > c.number AND r.revoked_serial IS NOT NULL))"
    )
}
