// Builds the console into the package. React, its router and Chakra UI are the host's own, so that theme and dark mode are
// Airflow's; Chart.js is inside. The same sources and the same lock file give the same bytes.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const HOST = {
  react: "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
};
const fromHost = {
  name: "from-host",
  setup(made) {
    const named = new RegExp(`^(${Object.keys(HOST).map((one) => one.replace("/", "\\/")).join("|")})$`);
    made.onResolve({ filter: named }, ({ path }) => ({ path, namespace: "from-host" }));
    made.onLoad({ filter: /.*/, namespace: "from-host" }, ({ path }) => ({
      contents: `module.exports = globalThis[${JSON.stringify(HOST[path])}];`,
      loader: "js",
    }));
  },
};
const here = fileURLToPath(new URL(".", import.meta.url));
await build({
  absWorkingDir: here,
  entryPoints: ["src/index.tsx"],
  outfile: process.argv[2] ?? "../include/backstop/airflow/console/static/console.js",
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "transform",
  inject: ["src/react.ts"],
  minify: true,
  charset: "utf8",
  legalComments: "inline",
  plugins: [fromHost],
  logLevel: "warning",
});
