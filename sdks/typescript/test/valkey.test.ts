/** What must hold on every store, on Valkey: journals, waits, children, forks, what is reserved, and exchanges. */
process.env["STORE"] = "valkey";
await import("./durable.test.js");
await import("./governance.test.js");
await import("./exchange.test.js");
await import("./sequences.test.js");
