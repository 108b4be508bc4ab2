/** What is typed in the recorded session (session.ts). */

/** In the first terminal. */
export const FIRST = "npm run -s vmlet -- dev --engine process --state-dir /tmp/vmlet-session";

/** In the second one. */
export const COMMANDS: readonly string[] = [
  "export KUBECONFIG=/tmp/vmlet-session/kubeconfig",
  "kubectl get nodes",
  "kubectl create deployment web --image=nginx --replicas=3",
  "kubectl rollout status deployment/web",
  "kubectl get pods",
  "kubectl logs deployment/web --tail=3",
  "kubectl exec deployment/web -- uname -s",
  "kubectl delete deployment web",
];
