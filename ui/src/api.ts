// Asks the API. Everything is relative to Airflow's own address.
import { useCallback, useEffect, useRef, useState } from "react";

export type Problem = { what: string; unaffected: string; next_step: string; status: number };
export type Rows = { list: string; filter: string };
export type Action = {
  name: string;
  allowed: boolean;
  why_not: string | null;
  method: string;
  href: string;
  body: Record<string, unknown>;
};
export type Page<Row> = { items: Row[]; next: string | null };
export type Row = Record<string, unknown>;

export const address = (path: string): string => new URL(path.replace(/^\//, ""), document.baseURI).href;
export const api = (path: string): string => address(`backstop/api/v1${path}`);

export class Failed extends Error {
  constructor(readonly problem: Problem) {
    super(problem.what);
  }
}

export const ask = async <T>(url: string, method = "GET", body?: unknown): Promise<T> => {
  let answer: Response;
  try {
    answer = await fetch(url, {
      method,
      credentials: "same-origin",
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Failed({ what: "", unaffected: "", next_step: "", status: 0 });
  }
  const said: unknown = await answer.json().catch(() => null);
  if (answer.ok) return said as T;
  const { what, unaffected, next_step, detail } = (said ?? {}) as Row;
  const text = what ?? (typeof detail === "string" ? detail : JSON.stringify(detail ?? answer.statusText));
  throw new Failed({
    what: String(text),
    unaffected: String(unaffected ?? ""),
    next_step: String(next_step ?? ""),
    status: answer.status,
  });
};

// Answers a form of Airflow, in whose record the answer is kept with who gave it. Fields that are not given stay empty.
export type FormOf = { href: string; page: string; options: string[]; fields: string[] };
export const answer = (form: FormOf, option: string, given: Record<string, string | number> = {}): Promise<unknown> =>
  ask(address(form.href), "PATCH", {
    chosen_options: [option],
    params_input: Object.fromEntries(form.fields.map((name) => [name, given[name] ?? null])),
  });

export const problemOf = (error: unknown): Problem =>
  error instanceof Failed ? error.problem : { what: String(error), unaffected: "", next_step: "", status: 0 };

export type Got<T> = { data: T | null; problem: Problem | null; again: () => void; loading: boolean };

// Asks again every `seconds` while the page is visible; what was shown stays while the next answer is under way.
export const useGet = <T>(path: string | null, seconds = 0): Got<T> => {
  const [state, setState] = useState<{ path: string | null; data: T | null; problem: Problem | null; loading: boolean }>({
    path,
    data: null,
    problem: null,
    loading: true,
  });
  const asked = useRef(0);
  const again = useCallback(() => {
    if (path === null) return;
    const mine = ++asked.current;
    setState((old) => ({ ...old, loading: true }));
    ask<T>(api(path)).then(
      (data) => mine === asked.current && setState({ path, data, problem: null, loading: false }),
      (error: unknown) =>
        mine === asked.current &&
        setState((old) => ({
          path,
          data: old.path === path ? old.data : null,
          problem: error instanceof Failed ? error.problem : { what: String(error), unaffected: "", next_step: "", status: 0 },
          loading: false,
        })),
    );
  }, [path]);
  useEffect(() => {
    again();
    if (seconds === 0) return;
    const timer = setInterval(() => document.visibilityState === "visible" && again(), seconds * 1000);
    return () => clearInterval(timer);
  }, [again, seconds]);
  const fits = state.path === path;
  return { data: fits ? state.data : null, problem: fits ? state.problem : null, again, loading: state.loading };
};

// A list with the pages that were asked for so far; it is asked for again every `seconds` while only the first is shown.
export const useList = <T>(path: string, seconds = 0): Got<T[]> & { next: string | null; more: () => void } => {
  const [rest, setRest] = useState<{ of: Page<T> | null; items: T[]; next: string | null }>({ of: null, items: [], next: null });
  const first = useGet<Page<T>>(path, rest.items.length > 0 ? 0 : seconds);
  const [problem, setProblem] = useState<Problem | null>(null);
  const mine = rest.of === first.data ? rest : { of: first.data, items: [], next: first.data?.next ?? null };
  const more = () => {
    if (mine.next === null) return;
    const joint = path.includes("?") ? "&" : "?";
    ask<Page<T>>(api(`${path}${joint}after=${encodeURIComponent(mine.next)}`)).then(
      (page) => setRest({ of: mine.of, items: [...mine.items, ...page.items], next: page.next }),
      (error: unknown) => error instanceof Failed && setProblem(error.problem),
    );
  };
  const data = first.data === null ? null : [...first.data.items, ...mine.items];
  return { ...first, data, problem: first.problem ?? problem, next: mine.next, more };
};
