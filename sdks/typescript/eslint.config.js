import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist", "build", "src/wire.ts", "eslint.config.js"] },
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      // Numbers belong into messages.
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
    },
  },
  {
    files: ["test/**", "examples/**"],
    // node:test returns a promise from `test` that the runner itself awaits.
    rules: { "@typescript-eslint/no-floating-promises": "off" },
  },
);
