/** What must hold on every store, on Valkey: journals, waits, children, forks, and what is reserved. */
process.env["STORE"] = "valkey";
await import("./durable.test.js");
await import("./governance.test.js");
