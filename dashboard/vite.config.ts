import { defineConfig } from "vite";

// The built files are committed and compared by the gate, so the build must give the same bytes everywhere: names come
// from content alone, and nothing of the machine or the day gets in.
export default defineConfig({
  build: {
    outDir: "../crates/server/dashboard",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // A file that is small enough to be written into another would need a policy that allows it.
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  // `npm run dev` beside a running `ff dev`.
  server: { proxy: { "/v1": "http://127.0.0.1:7171", "/metrics": "http://127.0.0.1:7171", "/readyz": "http://127.0.0.1:7171" } },
});
