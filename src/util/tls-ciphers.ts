/**
 * The cipher suites of every TLS server of ours: all of TLS 1.3, and of TLS 1.2 those that encrypt and authenticate at
 * once and keep the past secret. CIS asks a kubelet for these (4.2.12); Node's own list has the older suites with CBC
 * too.
 */
export const TLS_CIPHERS = [
  "TLS_AES_128_GCM_SHA256",
  "TLS_AES_256_GCM_SHA384",
  "TLS_CHACHA20_POLY1305_SHA256",
  "ECDHE-ECDSA-AES128-GCM-SHA256",
  "ECDHE-RSA-AES128-GCM-SHA256",
  "ECDHE-ECDSA-AES256-GCM-SHA384",
  "ECDHE-RSA-AES256-GCM-SHA384",
  "ECDHE-ECDSA-CHACHA20-POLY1305",
  "ECDHE-RSA-CHACHA20-POLY1305",
].join(":");
