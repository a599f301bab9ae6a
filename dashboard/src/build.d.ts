/** The address of the licences of the packages, which the build sets. */
declare const LICENCES: string;
