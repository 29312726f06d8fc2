import { Box, Link, Stack, Text } from "@chakra-ui/react";
import { useSearchParams } from "react-router-dom";
import { useGet, useList } from "../api";
import { Facts, FilterBar, Loaded, More, Raw, Rows, Said, Section, Tag, Title, To, When, pathOf } from "../parts";
import { texts } from "../texts";

type ProofOf = { run: number; topic: string; window_from: string; window_to: string; answer: string; sentence: string; deliveries: number; digest: string; proved_at: string };
type WholeOf = ProofOf & { manifest: string | null; signature: string | null; counts: { group: string; standing: string; verdict: string; reason: string; deliveries: number }[] };

export const Proofs = () => {
  const [search] = useSearchParams();
  const got = useList<ProofOf>(`/proofs?filter=${encodeURIComponent(search.get("filter") ?? "")}`);
  return (
    <>
      <Title>{texts.proofs.title}</Title>
      <FilterBar list="proofs" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.proofs.title}
            empty={texts.proofs.empty}
            rows={rows}
            columns={[
              { name: texts.columns.run, cell: (row) => <To to={pathOf(`/proofs/${row.run}`)}>{row.run}</To> },
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.answer, cell: (row) => <Tag kind={row.answer}>{texts.proofs.answers[row.answer] ?? row.answer}</Tag> },
              { name: texts.columns.what, wide: true, cell: (row) => <Said>{row.sentence}</Said> },
              { name: texts.columns.deliveries, number: true, cell: (row) => row.deliveries.toLocaleString() },
              { name: texts.columns.at, cell: (row) => <When at={row.proved_at} /> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
    </>
  );
};

// The very bytes: a signature is of them.
const Download = ({ name, content, children }: { name: string; content: string; children: string }) => (
  <Link textDecoration="underline" href={`data:application/octet-stream;charset=utf-8,${encodeURIComponent(content)}`} download={name}>
    {children}
  </Link>
);

export const Proof = ({ id }: { id: string }) => {
  const got = useGet<WholeOf>(`/proofs/${encodeURIComponent(id)}`);
  return (
    <Loaded got={got}>
      {(proof) => (
        <>
          <Title>{`${texts.proofs.title}: ${proof.topic}`}</Title>
          <Text mb={3} fontSize="lg"><Said>{proof.sentence}</Said></Text>
          <Facts
            facts={[
              [texts.columns.answer, <Tag kind={proof.answer}>{texts.proofs.answers[proof.answer] ?? proof.answer}</Tag>],
              [texts.columns.window, <><When at={proof.window_from} /> <When at={proof.window_to} /></>],
              [texts.proofs.digest, proof.digest],
              [texts.proofs.signature, <Box as="span" wordBreak={proof.signature ? "break-all" : undefined} data-testid="signature">{proof.manifest === null ? texts.proofs.noExport : (proof.signature ?? texts.proofs.unsigned)}</Box>],
              [texts.columns.run, <To to={pathOf(`/runs/${proof.run}`)}>{proof.run}</To>],
            ]}
          />
          <Section title={texts.columns.deliveries}>
            <Rows
              label={texts.columns.deliveries}
              empty={texts.none}
              rows={proof.counts}
              columns={[
                { name: texts.columns.group, cell: (row) => row.group },
                { name: texts.columns.state, cell: (row) => row.standing },
                { name: texts.columns.verdict, cell: (row) => <Tag>{row.verdict}</Tag> },
                { name: texts.columns.reason, cell: (row) => row.reason },
                { name: texts.columns.deliveries, number: true, cell: (row) => row.deliveries.toLocaleString() },
              ]}
            />
          </Section>
          <Stack gap={1} align="start">
            <Download name={`proof-${proof.run}.json`} content={JSON.stringify(proof, null, 2)}>{texts.proofs.download}</Download>
            {proof.manifest === null ? null : <Download name="manifest.json" content={proof.manifest}>{texts.proofs.manifest}</Download>}
            {proof.signature === null ? null : <Download name="manifest.sig" content={proof.signature}>{texts.proofs.downloadSignature}</Download>}
          </Stack>
          {proof.manifest === null ? null : (
            <>
              <Text mt={3} fontSize="sm">{texts.proofs.verify}</Text>
              <Raw value={`backstop prove --verify run-${proof.run}${proof.signature === null ? "" : " --key public.pem"}`} />
            </>
          )}
        </>
      )}
    </Loaded>
  );
};
