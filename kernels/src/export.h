#pragma once
#if defined(_WIN32)
#define SELFSPEC_EXPORT __declspec(dllexport)
#else
#define SELFSPEC_EXPORT __attribute__((visibility("default")))
#endif
