import { render } from "preact";
import "./style.css";
import { App } from "./app";
import { watchAttention } from "./live";
import { startRouter } from "./router";
import { loadSession } from "./session";
import { startTheme } from "./theme";

startTheme();
startRouter();
watchAttention();
void loadSession();
const root = document.getElementById("app");
if (root) render(<App />, root);
