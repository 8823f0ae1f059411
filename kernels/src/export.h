// Everything else is hidden (-fvisibility=hidden): the library lives in a process with others.
#pragma once
#define SELFSPEC_EXPORT __attribute__((visibility("default")))
