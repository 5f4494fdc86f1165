/* The data types that cuBLASLt is told of, with CUDA's values. */
#ifndef DGSIM_LIBRARY_TYPES_H
#define DGSIM_LIBRARY_TYPES_H

typedef enum cudaDataType {
    CUDA_R_32F = 0,
    CUDA_R_16F = 2,
    CUDA_R_8I = 3,
    CUDA_R_32I = 10,
    CUDA_R_16BF = 14
} cudaDataType;
typedef cudaDataType cudaDataType_t;

#endif
