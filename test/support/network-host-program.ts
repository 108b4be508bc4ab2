/**
 * What runs on each host of `network-hosts.ts`: a backend's network with one machine, until its standard input ends.
 * Its argument is the network's options as JSON, with `told`, the range of a Node, where `cidr` is that; it prints the machine's attachment.
 */
import { text } from "node:stream/consumers";
import { HostNetwork, type NetworkOptions } from "../../providers/local/network/network.ts";

const { told, ...options } = JSON.parse(process.argv[2]!) as NetworkOptions & { told?: string };
const network = new HostNetwork(options);
await network.claim();
if (told !== undefined) await network.moveTo(told);
console.log(JSON.stringify(await network.attachNamespace("machine")));
await text(process.stdin);
await network.remove();
