// What JSX becomes: the host's JSX runtime is not the same in every version of Airflow, its React is.
import * as React from "react";

export { React };
