import { Box, Button, Text } from "@chakra-ui/react";
import { useState } from "react";
import { useGet, type Action } from "../api";
import { Loaded, Rows, Section, Tag, Title } from "../parts";
import { texts } from "../texts";

type MeOf = { id: string; name: string; topics: { topic: string; team: string | null; mode: string; actions: Action[] }[]; actions: Action[] };
type SettingOf = { name: string; value: string; source: string; description: string };
type SettingsOf = { version: string; policies: { topic: string; group: string; settings: SettingOf[] }[] };

type CheckOf = { good: boolean; findings: { subject: string; good: boolean; says: string; do: string }[] };

// Asked for by a click: it asks every store and broker. What is bad stands first.
const Check = ({ action }: { action: Action | undefined }) => {
  const [asked, setAsked] = useState(false);
  const got = useGet<CheckOf>(asked ? "/check" : null);
  if (action === undefined) return null;
  if (!asked)
    return (
      <Box>
        <Button size="sm" disabled={!action.allowed} onClick={() => setAsked(true)} data-testid="check">{texts.settings.checkNow}</Button>
        <Text fontSize="xs" color="fg.muted">{action.allowed ? texts.settings.checkHelp : `${texts.greyed}: ${action.why_not ?? ""}`}</Text>
      </Box>
    );
  return (
    <Loaded got={got}>
      {(data) => {
        const bad = data.findings.filter((one) => !one.good);
        return (
          <>
            <Text mb={2} data-testid="checked">{texts.settings.checked(data.findings.length, bad.length)}</Text>
            <Rows
              label={texts.settings.check}
              empty={texts.none}
              rows={[...bad, ...data.findings.filter((one) => one.good)]}
              columns={[
                { name: texts.columns.state, cell: (one) => <Tag kind={one.good ? "good" : "bad"}>{one.good ? texts.settings.good : texts.settings.bad}</Tag> },
                { name: texts.settings.subject, cell: (one) => one.subject },
                { name: texts.columns.what, wide: true, cell: (one) => one.says },
                { name: texts.failed.next, cell: (one) => one.do },
              ]}
            />
          </>
        );
      }}
    </Loaded>
  );
};

export const Settings = () => {
  const me = useGet<MeOf>("/me");
  const got = useGet<SettingsOf>("/settings");
  const [whole, setWhole] = useState(false);
  return (
    <>
      <Title>{texts.settings.title}</Title>
      <Section title={texts.settings.mine}>
        <Loaded got={me}>
          {(data) => (
            <>
              <Text mb={2} data-testid="me">{texts.settings.who(data.name, data.id)}</Text>
              <Rows
                label={texts.settings.mine}
                empty={texts.none}
                rows={[...data.actions.map((action) => ({ topic: texts.all, action })), ...data.topics.flatMap((topic) => topic.actions.map((action) => ({ topic: topic.topic, action })))]}
                columns={[
                  { name: texts.columns.topic, cell: (row) => row.topic },
                  { name: texts.columns.what, cell: (row) => row.action.name },
                  { name: texts.columns.allowed, cell: (row) => (row.action.allowed ? texts.yes : texts.no) },
                  { name: texts.columns.reason, wide: true, cell: (row) => row.action.why_not ?? "" },
                ]}
              />
            </>
          )}
        </Loaded>
      </Section>
      <Section title={texts.settings.check}>
        <Loaded got={me}>{(data) => <Check action={data.actions.find((one) => one.name === "check")} />}</Loaded>
      </Section>
      <Section title={texts.settings.policy}>
        <Button size="xs" variant="outline" mb={2} onClick={() => setWhole(!whole)}>
          {whole ? texts.settings.onlyChanged : texts.settings.everything}
        </Button>
        <Loaded got={got}>
          {(data) => (
            <>
              <Text mb={2}>{`${texts.settings.version}: ${data.version}`}</Text>
              {data.policies.map((policy) => (
                <Section key={`${policy.topic} ${policy.group}`} title={`${policy.topic}, ${policy.group}`}>
                  <Rows
                    label={`${policy.topic}, ${policy.group}`}
                    empty={texts.none}
                    rows={policy.settings.filter((setting) => whole || setting.source !== "default")}
                    columns={[
                      { name: texts.columns.setting, cell: (row) => row.name },
                      { name: texts.columns.value, cell: (row) => row.value },
                      { name: texts.columns.source, cell: (row) => <Tag>{row.source}</Tag> },
                      { name: texts.columns.what, wide: true, cell: (row) => row.description },
                    ]}
                  />
                </Section>
              ))}
            </>
          )}
        </Loaded>
      </Section>
    </>
  );
};
