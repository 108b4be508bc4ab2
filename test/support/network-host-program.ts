/**
 * What runs on each host of `network-hosts.ts`: a backend's network with one machine, until its standard input ends.
 * Its argument is the network's options as JSON; it prints the machine's attachment.
 */
import { text } from "node:stream/consumers";
import { HostNetwork, type NetworkOptions } from "../../providers/local/network/network.ts";

const network = new HostNetwork(JSON.parse(process.argv[2]!) as NetworkOptions);
await network.claim();
console.log(JSON.stringify(await network.attachNamespace("machine")));
await text(process.stdin);
await network.remove();
