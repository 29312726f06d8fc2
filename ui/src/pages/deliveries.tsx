import { useSearchParams } from "react-router-dom";
import { useList } from "../api";
import { FilterBar, Loaded, MessageLink, More, Rows, Tag, Title, To, When, pathOf } from "../parts";
import { texts } from "../texts";
import { History } from "./overview";

type DeliveryOf = { topic: string; message_id: string; group: string; verdict: string; reason: string; since: string; judged_at: string; run: number; case_kind: string | null };

const part = (filter: string, name: string): string | undefined => new RegExp(`(?:^|\\s)${name}:([^\\s"]+)`).exec(filter)?.[1];

export const Deliveries = () => {
  const [search] = useSearchParams();
  const filter = search.get("filter") ?? "";
  const got = useList<DeliveryOf>(`/deliveries?filter=${encodeURIComponent(filter)}`);
  return (
    <>
      <Title>{texts.deliveries.title}</Title>
      <FilterBar list="deliveries" />
      <Loaded got={got}>
        {(rows) => (
          <Rows
            label={texts.deliveries.title}
            empty={texts.deliveries.empty}
            rows={rows}
            columns={[
              { name: texts.columns.topic, cell: (row) => row.topic },
              { name: texts.columns.message, cell: (row) => <MessageLink topic={row.topic} id={row.message_id} /> },
              { name: texts.columns.group, cell: (row) => row.group },
              { name: texts.columns.verdict, cell: (row) => <Tag>{row.verdict}</Tag> },
              { name: texts.columns.reason, wide: true, cell: (row) => row.reason },
              { name: texts.columns.since, cell: (row) => <When at={row.since} /> },
              { name: texts.columns.run, cell: (row) => <To to={pathOf(`/runs/${row.run}`)}>{row.run}</To> },
            ]}
          />
        )}
      </Loaded>
      <More next={got.next} more={got.more} />
      <History topic={part(filter, "topic")} group={part(filter, "group")} />
    </>
  );
};
