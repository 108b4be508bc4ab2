import { holdsFor } from "./schedules.ts";

holdsFor({ half: 1 });
