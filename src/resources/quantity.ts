/**
 * Kubernetes quantities (`500m`, `1.5Gi`, `12e6`), exactly: an integer of nano-units, never a float.
 *
 * The rules are those of apimachinery's `resource.Quantity`: whatever is smaller than 1n rounds away from zero, the
 * canonical text keeps the written format (decimal, binary, exponent), and whole values round up.
 */
import { VmletError } from "../util/errors.ts";

type QuantityFormat = "DecimalSI" | "BinarySI" | "DecimalExponent";

const NANO = 1_000_000_000n;
const MILLI = 1_000_000n;
const MAX_INT64 = 2n ** 63n - 1n;
/** Far beyond anything the API accepts, and small enough that no text can make the parser build a giant number. */
const MAX_EXPONENT = 400;
const MAX_LENGTH = 1024;

const DECIMAL_SUFFIXES: readonly (readonly [suffix: string, exponent: number])[] = [
  ["n", -9],
  ["u", -6],
  ["m", -3],
  ["", 0],
  ["k", 3],
  ["M", 6],
  ["G", 9],
  ["T", 12],
  ["P", 15],
  ["E", 18],
];
const BINARY_SUFFIXES = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] as const;

export class QuantityError extends VmletError {
  readonly code = "INVALID_QUANTITY";
}

/** An immutable amount. Make one with `Quantity.parse` or `Quantity.of`. */
export class Quantity {
  static readonly zero = new Quantity(0n, "DecimalSI");

  /** The amount in units of 1e-9. */
  readonly nano: bigint;
  readonly format: QuantityFormat;

  private constructor(nano: bigint, format: QuantityFormat) {
    this.nano = nano;
    this.format = format;
  }

  /**
   * Parses what the API server accepts, and plain numbers as YAML gives them.
   * @throws QuantityError that names the text
   */
  static parse(text: string | number): Quantity {
    const quantity = Quantity.tryParse(text);
    if (quantity === undefined) {
      throw new QuantityError(
        `"${String(text).slice(0, 64)}" is not a quantity: expected a number with one of the suffixes n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent`,
      );
    }
    return quantity;
  }

  /** Like `parse`, but undefined for what is not a quantity. */
  static tryParse(text: string | number): Quantity | undefined {
    // Numbers with that many digits are slow to compute with, and no real amount needs them.
    if (String(text).length > MAX_LENGTH) return undefined;
    const match = /^([+-]?)(\d*)(?:\.(\d*))?(?:([a-zA-Z]+)([+-]?\d*))?$/.exec(String(text));
    if (!match) return undefined;
    const [, sign = "", whole = "", fraction = "", letters = "", digits = ""] = match;
    if (whole === "" && fraction === "") return undefined;

    const scale = interpretSuffix(letters, digits);
    if (scale === undefined) return undefined;
    const unscaled = BigInt(whole + fraction);
    const exponent = 9 - fraction.length + scale.decimalExponent;
    let nano =
      exponent >= 0
        ? unscaled * scale.factor * 10n ** BigInt(exponent)
        : divideUp(unscaled * scale.factor, 10n ** BigInt(-exponent));
    let format = scale.format;
    if (format === "BinarySI") {
      if (nano > MAX_INT64 * NANO) nano = MAX_INT64 * NANO;
      if (nano < NANO && nano > 0n) format = "DecimalSI";
    }
    return new Quantity(sign === "-" ? -nano : nano, format);
  }

  /** A whole amount, for example a number of pods or of bytes. */
  static of(value: number | bigint, format: QuantityFormat = "DecimalSI"): Quantity {
    return new Quantity(BigInt(value) * NANO, format);
  }

  /** An amount of thousandths: cpu millicores. */
  static ofMillis(millis: number | bigint): Quantity {
    return new Quantity(BigInt(millis) * MILLI, "DecimalSI");
  }

  get isZero(): boolean {
    return this.nano === 0n;
  }

  /** The sum keeps this amount's format, or the other's when this one is zero. */
  add(other: Quantity): Quantity {
    return new Quantity(this.nano + other.nano, this.isZero ? other.format : this.format);
  }

  sub(other: Quantity): Quantity {
    return new Quantity(this.nano - other.nano, this.isZero ? other.format : this.format);
  }

  /** Negative, zero or positive, as a sort wants it. */
  compare(other: Quantity): number {
    return this.nano < other.nano ? -1 : this.nano > other.nano ? 1 : 0;
  }

  equals(other: Quantity): boolean {
    return this.nano === other.nano;
  }

  /** Whole units, rounded away from zero: bytes of memory (Go: `Value`). */
  value(): bigint {
    return roundAway(this.nano, NANO);
  }

  /** Thousandths, rounded away from zero: cpu (Go: `MilliValue`). */
  milliValue(): bigint {
    return roundAway(this.nano, MILLI);
  }

  /** `value()` as a number, capped at the largest safe integer. */
  toNumber(): number {
    return clampToSafeInteger(this.value());
  }

  /** `milliValue()` as a number, capped at the largest safe integer. */
  toMillis(): number {
    return clampToSafeInteger(this.milliValue());
  }

  /** The canonical text: no fraction, the largest suffix that loses nothing. */
  toString(): string {
    if (this.isZero) return "0";
    const magnitude = this.nano < 0n ? -this.nano : this.nano;
    const sign = this.nano < 0n ? "-" : "";
    const isWhole = magnitude % NANO === 0n;
    if (this.format === "BinarySI" && isWhole && magnitude >= 1024n * NANO) {
      return sign + formatBinary(magnitude / NANO);
    }
    return sign + formatDecimal(magnitude, this.format === "DecimalExponent");
  }

  toJSON(): string {
    return this.toString();
  }
}

function interpretSuffix(
  letters: string,
  digits: string,
): { factor: bigint; decimalExponent: number; format: QuantityFormat } | undefined {
  if (digits === "") {
    const decimal = DECIMAL_SUFFIXES.find(([suffix]) => suffix === letters);
    if (decimal) return { factor: 1n, decimalExponent: decimal[1], format: "DecimalSI" };
    const binary = BINARY_SUFFIXES.findIndex((suffix) => suffix === letters);
    if (binary > 0) return { factor: 1024n ** BigInt(binary), decimalExponent: 0, format: "BinarySI" };
    return undefined;
  }
  if ((letters !== "e" && letters !== "E") || !/\d/.test(digits)) return undefined;
  const exponent = Number(digits);
  if (Math.abs(exponent) > MAX_EXPONENT) return undefined;
  return { factor: 1n, decimalExponent: exponent, format: "DecimalExponent" };
}

function formatDecimal(nano: bigint, asExponent: boolean): string {
  let mantissa = nano;
  let exponent = -9;
  while (mantissa % 10n === 0n) {
    mantissa /= 10n;
    exponent++;
  }
  // Suffixes exist for multiples of three only, and none is larger than E.
  const target = Math.floor(exponent / 3) * 3;
  const used = asExponent ? target : Math.min(target, 18);
  mantissa *= 10n ** BigInt(exponent - used);
  if (asExponent) return used === 0 ? `${mantissa}` : `${mantissa}e${used}`;
  const suffix = DECIMAL_SUFFIXES.find(([, e]) => e === used)?.[0] ?? "";
  return `${mantissa}${suffix}`;
}

function formatBinary(whole: bigint): string {
  let mantissa = whole;
  let power = 0;
  while (mantissa % 1024n === 0n && power < BINARY_SUFFIXES.length - 1) {
    mantissa /= 1024n;
    power++;
  }
  return `${mantissa}${BINARY_SUFFIXES[power]}`;
}

/** Division of non-negative numbers, rounded up. */
function divideUp(dividend: bigint, divisor: bigint): bigint {
  return (dividend + divisor - 1n) / divisor;
}

function roundAway(amount: bigint, unit: bigint): bigint {
  return amount >= 0n ? divideUp(amount, unit) : -divideUp(-amount, unit);
}

function clampToSafeInteger(value: bigint): number {
  const limit = BigInt(Number.MAX_SAFE_INTEGER);
  return Number(value > limit ? limit : value < -limit ? -limit : value);
}
