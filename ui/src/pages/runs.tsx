import { Button, Text } from "@chakra-ui/react";
import { useMemo } from "react";
import { useSearchParams } from "react-router-dom";
import { address, useGet, useList } from "../api";
import { Bars } from "../chart";
import { Empty, Facts, FilterBar, Loaded, MessageLink, More, Out, Rows, Said, Section, Tag, Title, To, When, duration, pathOf } from "../parts";
import { texts } from "../texts";

type CheckOf = { suite: string; passed: boolean; expectations: number; failed: { name: string; must_hold: string | null; count: number; ids: Record<string, string>[] }[]; checked_at: string };
type PhaseOf = { name: string; since: string; done: number | null; of: number | null };
type RunRowOf = { run: number; duty: string; scope: string; state: string; dry_run: boolean; started_at: string; finished_at: string | null; heartbeat_age: number; stuck: boolean; counts: Record<string, number>; phases: Record<string, number>; phase: PhaseOf | null; error: string | null; check_failed: boolean };
type RunOf = RunRowOf & { as_of: string; stage: number; policy_version: string; code_version: string; checks: CheckOf[]; verdicts: { topic: string; group: string; verdict: string; deliveries: number; eligible: number }[]; unread: { subject: string; detail: string | null }[] };

const counts = (of: Record<string, number>): string => Object.entries(of).filter(([, number]) => number !== 0).map(([name, number]) => `${name} ${number}`).join(", ");
const took = (row: RunRowOf): string => duration(((row.finished_at ? new Date(row.finished_at) : new Date()).getTime() - new Date(row.started_at).getTime()) / 1000);

const progress = (phase: PhaseOf): string => (phase.done === null ? "" : texts.runs.progress(phase.done, phase.of));

// What a run does at the moment and when it was last heard of; nothing of one that has ended.
const Live = ({ row }: { row: RunRowOf }) =>
  row.finished_at !== null ? null : (
    <Text fontSize="xs" data-testid="live">
      {[row.phase ? `${row.phase.name}${row.phase.done === null ? "" : ` (${progress(row.phase)})`}` : "", texts.runs.heard(duration(row.heartbeat_age))].filter(Boolean).join(", ")}
    </Text>
  );

export const Runs = () => {
  const [search, setSearch] = useSearchParams();
  const filter = search.get("filter") ?? "";
  const empty = search.get("empty") === "true";
  const got = useList<RunRowOf>(`/runs?empty=${empty}&filter=${encodeURIComponent(filter)}`, 15);
  return (
    <>
      <Title
        actions={
          <Button size="sm" variant="outline" onClick={() => setSearch({ ...(filter ? { filter } : {}), empty: String(!empty) })}>
            {empty ? texts.runs.hideEmpty : texts.runs.showEmpty}
          </Button>
        }
      >
        {texts.runs.title}
      </Title>
      <FilterBar list="runs" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.runs.title}
            empty={texts.runs.empty}
            rows={rows}
            columns={[
              { name: texts.columns.run, cell: (row) => <To to={pathOf(`/runs/${row.run}`)}>{row.run}</To> },
              { name: texts.columns.duty, cell: (row) => `${row.duty}${row.scope === "*" ? "" : ` ${row.scope}`}` },
              { name: texts.columns.state, wide: true, cell: (row) => <><Tag>{row.state}</Tag> {row.stuck ? <Tag kind="stuck">{texts.runs.stuck}</Tag> : null} {row.check_failed ? <Tag kind="failed">{texts.runs.checkFailed}</Tag> : null}<Live row={row} /></> },
              { name: texts.columns.started, cell: (row) => <When at={row.started_at} /> },
              { name: texts.columns.took, cell: (row) => took(row) },
              { name: texts.columns.counts, cell: (row) => counts(row.counts) },
              { name: texts.columns.error, wide: true, cell: (row) => <Said>{row.error ?? ""}</Said> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

export const Run = ({ id }: { id: string }) => {
  const got = useGet<RunOf>(`/runs/${encodeURIComponent(id)}`, 10);
  const checks = got.data?.checks;
  const [names, stacks] = useMemo(
    () => [
      (checks ?? []).map((check) => check.suite),
      [
        { label: texts.runs.passed, colour: "#2f855a", values: (checks ?? []).map((check) => check.expectations - check.failed.length) },
        { label: texts.runs.checkFailed, colour: "#c53030", values: (checks ?? []).map((check) => check.failed.length) },
      ],
    ] as const,
    [checks],
  );
  return (
    <Loaded got={got}>
      {(run) => (
        <>
          <Title>{`${texts.columns.run} ${run.run}: ${run.duty}`}</Title>
          <Facts
            facts={[
              [texts.columns.state, <><Tag>{run.state}</Tag> {run.stuck ? <Tag kind="stuck">{texts.runs.stuck}</Tag> : null}</>],
              [texts.columns.started, <When at={run.started_at} />],
              [texts.columns.took, took(run)],
              [texts.columns.phase, run.phase ? <>{run.phase.name} <When at={run.phase.since} /></> : null],
              [texts.columns.progress, run.phase ? progress(run.phase) : null],
              [texts.columns.heartbeat, run.finished_at ? null : texts.runs.heard(duration(run.heartbeat_age))],
              [texts.columns.counts, counts(run.counts)],
              [texts.columns.phases, counts(run.phases)],
              [texts.columns.error, run.error ? <Said>{run.error}</Said> : null],
              [texts.settings.version, `${run.code_version}, ${run.policy_version}`],
            ]}
          />
          <Section title={texts.runs.checks}>
            {run.checks.length === 0 ? <Empty>{texts.runs.noChecks}</Empty> : <Bars label={texts.runs.chart} names={[...names]} stacks={[...stacks]} />}
            {run.checks.map((check) => (
              <Text key={check.suite} mt={2}>
                <Tag kind={check.passed ? "passed" : "failed"}>{check.passed ? texts.runs.passed : texts.runs.checkFailed}</Tag> {`${check.suite}: ${texts.runs.hold(check.expectations - check.failed.length, check.expectations)}. `}
                <Out href={address(`backstop/runs/${run.run}/checks/${encodeURIComponent(check.suite)}`)}>{texts.runs.docs}</Out>
              </Text>
            ))}
          </Section>
          {run.checks.flatMap((check) => check.failed).map((broken) => (
            <Section key={broken.name} title={`${broken.name} (${broken.count})`}>
              <Text mb={1}>{broken.must_hold ?? ""}</Text>
              <Rows
                label={texts.runs.ids}
                empty={texts.none}
                rows={broken.ids}
                columns={[
                  { name: texts.columns.topic, cell: (row) => row["topic"] ?? "" },
                  { name: texts.columns.message, cell: (row) => (row["message_id"] ? <MessageLink topic={row["topic"] ?? null} id={row["message_id"]} /> : JSON.stringify(row)) },
                ]}
              />
            </Section>
          ))}
          {run.verdicts.length > 0 ? (
            <Section title={texts.runs.verdicts}>
              <Rows
                label={texts.runs.verdicts}
                empty={texts.none}
                rows={run.verdicts}
                columns={[
                  { name: texts.columns.topic, cell: (row) => row.topic },
                  { name: texts.columns.group, cell: (row) => row.group },
                  { name: texts.columns.verdict, cell: (row) => <Tag>{row.verdict}</Tag> },
                  { name: texts.columns.deliveries, number: true, cell: (row) => row.deliveries.toLocaleString() },
                ]}
              />
            </Section>
          ) : null}
          {run.unread.length > 0 ? (
            <Section title={texts.runs.unread}>
              {run.unread.map((one) => <Text key={one.subject}><Said>{`${one.subject}: ${one.detail ?? ""}`}</Said></Text>)}
            </Section>
          ) : null}
        </>
      )}
    </Loaded>
  );
};
